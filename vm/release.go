package vm

import (
	_ "embed"
	"errors"
	"slices"
	"strings"
)

// Release is a release of Debian or Ubuntu, by the name that its archive has.
type Release string

// DefaultRelease is the release of a machine for which none is named.
const DefaultRelease Release = "bookworm"

// archive is what differs between the releases.
type archive struct {
	// kernel is the package of the kernel for virtual machines.
	kernel string
	// components are those of the archive that have the packages.
	components string
	// keyring has the keys of the archive, if Debian's do not.
	keyring []byte
}

//go:embed recipe/ubuntu-archive-keyring.gpg
var ubuntuKeyring []byte // of Debian's package ubuntu-keyring, 2023.11.28.1

// archives are what the releases are made from.
var archives = map[Release]archive{
	"bookworm": debian, // 12, Linux 6.1
	"trixie":   debian, // 13, Linux 6.12
	"jammy":    ubuntu, // 22.04, Linux 5.15
	"noble":    ubuntu, // 24.04, Linux 6.8
	"resolute": ubuntu, // 26.04, Linux 7.0
}

var (
	debian = archive{kernel: "linux-image-cloud-amd64", components: "main"}
	ubuntu = archive{kernel: "linux-image-virtual", components: "main,universe", keyring: ubuntuKeyring}
)

// Releases are the names of the releases that machines can have.
func Releases() string {
	var names []string
	for release := range archives {
		names = append(names, string(release))
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// Set implements flag.Value.
func (r *Release) Set(name string) error {
	if _, ok := archives[Release(name)]; !ok {
		return errors.New("want one of " + Releases())
	}
	*r = Release(name)
	return nil
}

// String implements flag.Value.
func (r *Release) String() string { return string(*r) }
