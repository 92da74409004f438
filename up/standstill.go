package up

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/filelock"
	"github.com/berth-dev/berth/up/freeze"
)

// Standstill keeps the cluster's files from changing until end is called. A cluster that does not run is locked; one that runs is frozen, by
// the guard that the command runs. within is how long it may be frozen, 0 for any time.
func (l Layout) Standstill(ctx context.Context, guard func(freeze.Target) *exec.Cmd) (end func() error, within time.Duration, err error) {
	lock, err := filelock.Acquire(filepath.Join(l.DataDir, lockName))
	if err == nil {
		return lock.Close, 0, nil
	}
	var held *filelock.HeldError
	if !errors.As(err, &held) {
		return nil, 0, fmt.Errorf("lock --data-dir: %w", err)
	}
	if held.PID == 0 {
		return nil, 0, fmt.Errorf("the cluster in %s runs in another PID namespace: run this command where berth up was started", l.DataDir)
	}
	saved, err := readState(l.statePath())
	if err != nil {
		return nil, 0, err
	}
	target := freeze.Target{Supervisor: held.PID, Isolated: saved.Isolated, Cgroup: l.CgroupRoot(), Disks: l.disksDir()}
	frozen, err := freeze.Freeze(ctx, target, guard(target))
	if err != nil {
		return nil, 0, err
	}
	if frozen.Limited {
		within = freeze.ShortLimit
	}
	return frozen.Thaw, within, nil
}

// CheckSavable returns an error unless the data directory has a whole cluster, and whether that runs.
func (l Layout) CheckSavable() (running bool, err error) {
	saved, err := readState(l.statePath())
	if errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("no cluster in --data-dir %s: name the directory of one", l.DataDir)
	}
	if err != nil {
		return false, err
	}
	if saved.Server != "" {
		return false, fmt.Errorf("--data-dir %s is of a node that has joined the cluster at %s: save the cluster on its first machine", l.DataDir, saved.Server)
	}
	if saved.KubeletRoot != "" {
		return false, fmt.Errorf("the cluster in %s has its Pods' files in --kubelet-root-dir %s, which a copy of the data directory would not have: "+
			"save a cluster that was created without the flag", l.DataDir, saved.KubeletRoot)
	}
	lock, err := filelock.Acquire(filepath.Join(l.DataDir, lockName))
	if errors.As(err, new(*filelock.HeldError)) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return false, lock.Close()
}

// WhileStopped calls do, which replaces the cluster, while that cannot start. What an earlier run has left is removed first; a cluster that
// runs is an error, and so is a data directory with files of others.
func (l Layout) WhileStopped(ctx context.Context, do func() error) error {
	if _, err := os.Stat(l.DataDir); errors.Is(err, fs.ErrNotExist) {
		return do()
	}
	if err := l.checkOwn("--replace"); err != nil {
		return err
	}
	lock, err := l.lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	if _, err := stopStale(ctx, l.RunDir); err != nil {
		return err
	}
	if err := l.cleanup(ctx); err != nil {
		return err
	}
	return do()
}

// forkKeeps are the files below pki that a fork has in common with its origin: the keys of the data in its store. Everything else is made anew, so
// that no certificate of one is valid for the other.
var forkKeeps = []string{"sa.key", "sa.pub", "sa-former.pub", "secrets.key", "secrets-copy.key", "secrets-in-plain"}

// PrepareFork makes the copy of a data directory a cluster of its own, which listens on the port. origin is the path that the data directory had.
func PrepareFork(dataDir, origin string, port int) error {
	path := filepath.Join(dataDir, stateName)
	saved, err := readState(path)
	if err != nil {
		return err
	}
	// Addresses of the machine's networks are its origin's.
	saved.APIPort, saved.APIAddress, saved.LoadBalancerCIDR = port, "", ""
	if err := saved.write(path); err != nil {
		return err
	}
	errs := []error{os.RemoveAll(filepath.Join(dataDir, "kubeconfigs")), os.RemoveAll(filepath.Join(dataDir, "admin.kubeconfig"))}
	keys, err := os.ReadDir(filepath.Join(dataDir, "pki"))
	errs = append(errs, err)
	for _, entry := range keys {
		if !slices.Contains(forkKeeps, entry.Name()) {
			errs = append(errs, os.RemoveAll(filepath.Join(dataDir, "pki", entry.Name())))
		}
	}
	return errors.Join(append(errs, RecordOrigin(dataDir, origin))...)
}

// RecordOrigin records the path that a copied data directory had, unless the control plane has done that.
func RecordOrigin(dataDir, origin string) error {
	const locationName = "location" // berth-controlplane compares it with the path at the start
	path := filepath.Join(dataDir, locationName)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return atomicfile.Write(path, []byte(origin+"\n"), 0o600)
}
