package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/userns"
	"github.com/opencontainers/cgroups/systemd"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Options are those of the runtime in containerd's configuration.
type Options struct {
	// Root is the directory of runc's state: each container has a directory in it.
	Root string
	// Runc is the program runc, for checkpoints; empty for the one in PATH.
	Runc          string
	SystemdCgroup bool
	NoPivotRoot   bool
	NoNewKeyring  bool
	// SeccompDir keeps compiled seccomp profiles; empty for none.
	SeccompDir string
}

// loadSpec reads a bundle's config.json.
func loadSpec(bundle string) (*specs.Spec, error) {
	data, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("read the container's specification: %w", err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, fmt.Errorf("read the container's specification %s: %w", filepath.Join(bundle, "config.json"), err)
	}
	if err := validateProcess(spec.Process); err != nil {
		return nil, err
	}
	if spec.Root == nil {
		return nil, errors.New("read the container's specification: it has no root")
	}
	if spec.Linux == nil {
		return nil, errors.New("read the container's specification: it has no part for Linux")
	}
	return &spec, nil
}

// config converts a specification. runc's library takes the working directory of the process for the bundle, and a shim has several
// bundles, so what is relative to the bundle is made absolute before and the library's note of the bundle is corrected.
func config(id, bundle string, spec *specs.Spec, options Options) (*configs.Config, error) {
	if !filepath.IsAbs(spec.Root.Path) {
		spec.Root.Path = filepath.Join(bundle, spec.Root.Path)
	}
	for i, mount := range spec.Mounts {
		isBind := mount.Type == "bind" || slices.Contains(mount.Options, "bind") || slices.Contains(mount.Options, "rbind")
		if isBind && !filepath.IsAbs(mount.Source) {
			spec.Mounts[i].Source = filepath.Join(bundle, mount.Source)
		}
	}
	rootless, err := rootlessCgroups(options.SystemdCgroup)
	if err != nil {
		return nil, err
	}
	converted, err := specconv.CreateLibcontainerConfig(&specconv.CreateOpts{
		CgroupName: id, UseSystemdCgroup: options.SystemdCgroup, NoPivotRoot: options.NoPivotRoot, NoNewKeyring: options.NoNewKeyring,
		Spec: spec, RootlessEUID: os.Geteuid() != 0, RootlessCgroups: rootless,
	})
	if err != nil {
		return nil, err
	}
	for i, label := range converted.Labels {
		if strings.HasPrefix(label, "bundle=") {
			converted.Labels[i] = "bundle=" + bundle
		}
	}
	return converted, nil
}

// containerType is the annotation by which containerd names the kind of a container.
const containerType = "io.kubernetes.cri.container-type"

// sandboxMounts are what the first process of a Pod's sandbox has mounted.
var sandboxMounts = []string{"/proc", "/dev"}

// trimSandbox removes from the specification of a Pod's sandbox the mounts that nothing uses: its only process opens no files, and CRI
// starts no others in it. Other containers are left as they are.
func trimSandbox(spec *specs.Spec) {
	if spec.Annotations[containerType] != "sandbox" {
		return
	}
	spec.Mounts = slices.DeleteFunc(spec.Mounts, func(m specs.Mount) bool { return !slices.Contains(sandboxMounts, m.Destination) })
}

// rootlessCgroups reports whether the machine's cgroups may be out of reach, as runc determines it.
func rootlessCgroups(systemdCgroup bool) (bool, error) {
	if os.Geteuid() != 0 {
		return true, nil
	}
	if !userns.RunningInUserNS() {
		return false, nil
	}
	if !systemdCgroup {
		return true, nil
	}
	owner, err := systemd.DetectUID()
	if err != nil {
		return false, nil //nolint:nilerr // without an answer the owner is assumed to be root, as in runc
	}
	return owner != 0, nil
}

// hasOwnPIDNamespace reports whether all processes of the container end with its first.
func hasOwnPIDNamespace(spec *specs.Spec) bool {
	return slices.ContainsFunc(spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool {
		return ns.Type == specs.PIDNamespace && ns.Path == ""
	})
}

// hasOwnRoot reports whether nothing uses the container's root in the bundle once the container is created. Hooks may, and a container that
// shares its mounts with the machine does.
func hasOwnRoot(c *configs.Config) bool {
	hooks := slices.ContainsFunc(slices.Collect(maps.Values(c.Hooks)), func(list configs.HookList) bool { return len(list) > 0 })
	return c.Namespaces.Contains(configs.NEWNS) && c.Namespaces.PathOf(configs.NEWNS) == "" && !c.Namespaces.Contains(configs.NEWUSER) &&
		!c.NoPivotRoot && c.RootPropagation&unix.MS_SHARED == 0 && !hooks
}
