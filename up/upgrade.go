package up

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/berth-dev/berth/internal/pidfile"
	"github.com/berth-dev/berth/internal/systemdunit"
	"github.com/berth-dev/berth/version"
)

// Versions are those of Berth and of the Kubernetes that it runs; empty where unknown.
type Versions struct{ Berth, Kubernetes string }

// String describes the versions to people.
func (v Versions) String() string {
	if v.Berth == "" {
		return "a berth that did not record its version"
	}
	return "berth " + v.Berth + " with Kubernetes " + v.Kubernetes
}

func ownVersions() Versions { return Versions{version.Berth, version.Kubernetes} }

func (s state) versions() Versions { return Versions{s.Berth, s.Kubernetes} }

// Upgrade is what this program would make of a cluster.
type Upgrade struct {
	// DataDir is the cluster's directory, Format its format, and KnownFormat the newest that this program reads.
	DataDir             string
	Format, KnownFormat int
	// Last are the versions that ran the cluster last, and so run it now if it is Running; This are this program's.
	Last, This Versions
	// Running says that the cluster runs, and Unit the service of systemd that runs it, if any.
	Running bool
	Unit    string
	// Isolated says that the cluster runs in namespaces of its own, and its Pods end with it.
	Isolated bool
	// Refused is why this program would not start the cluster, or nil.
	Refused error
}

// CheckUpgrade returns what this program would make of the cluster in the directory. It changes nothing.
func CheckUpgrade(dataDir string) (Upgrade, error) {
	u := Upgrade{DataDir: dataDir, KnownFormat: stateFormat, This: ownVersions()}
	saved, err := readState(filepath.Join(dataDir, stateName))
	if errors.Is(err, fs.ErrNotExist) {
		return u, fmt.Errorf("no cluster found in %s: name its directory with --data-dir", dataDir)
	}
	u.Format, u.Last, u.Isolated = saved.Format, saved.versions(), saved.Isolated
	if err != nil {
		if saved.Format > stateFormat {
			u.Refused = err
			return u, nil
		}
		return u, err
	}
	layout := Layout{Config: Config{DataDir: dataDir}}
	u.Refused = layout.checkVersions(u.Last, u.This)
	files, err := filepath.Glob(filepath.Join(runDir(clusterID(dataDir)), nodeProcess+"*pid"))
	if err != nil {
		return u, err
	}
	for _, file := range files {
		pid := pidfile.Running(pidfile.Proc, file)
		running := pid != 0
		if strings.HasSuffix(file, insidePIDSuffix) { // an ID of another PID namespace: the lock says whether it runs
			pid, running = lockHolder(filepath.Join(dataDir, lockName))
		}
		if running {
			u.Running, u.Unit = true, systemdunit.Of(filepath.Join(pidfile.Proc, fmt.Sprint(pid), "cgroup"))
		}
	}
	return u, nil
}

// checkVersions returns an error if this program must not run a cluster that other versions ran last: a downgrade, because newer
// versions write what older ones do not know, or an upgrade that leaves out a version of Kubernetes, which keeps old objects readable
// for one version.
func (l Layout) checkVersions(last, this Versions) error {
	refuse := func(why string) error {
		return fmt.Errorf("the cluster in %s was last run by %s, and this is %s: %s, or start over with --reset, which deletes the cluster",
			l.DataDir, last, this, why)
	}
	if older, known := compareMinor(this.Kubernetes, last.Kubernetes); known && older < 0 {
		return refuse("a downgrade is not possible; install that berth again or a newer one")
	} else if known && older > 1 {
		return refuse("Kubernetes is upgraded one minor version at a time; install a berth with the next one first")
	}
	if older, known := compareMinor(this.Berth, last.Berth); known && older < 0 {
		return refuse("a downgrade is not possible; install that berth again or a newer one")
	}
	return nil
}

// compareMinor returns by how many minor versions a is newer than b; less than 0 if it is older. A newer major version counts as more
// than one. known is false if one of them is no version.
func compareMinor(a, b string) (minors int, known bool) {
	x, errX := utilversion.ParseGeneric(a)
	y, errY := utilversion.ParseGeneric(b)
	if errX != nil || errY != nil {
		return 0, false
	}
	switch {
	case x.Major() > y.Major():
		return 2, true
	case x.Major() < y.Major():
		return -2, true
	}
	return int(x.Minor()) - int(y.Minor()), true
}
