package up

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/berth-dev/berth/up/removal"
	"github.com/berth-dev/berth/volume/blockpin"
)

// cleanup removes what the container runtime could not remove itself: shims, mounts, cgroups and network namespaces of
// this cluster. It runs after the runtime has stopped, so no new ones appear.
func (l Layout) cleanup(ctx context.Context) error {
	return errors.Join(l.stopShims(ctx), l.releaseMounts(ctx), l.cleanupHost(ctx))
}

// releaseMounts unmounts everything in the cluster's directories and detaches the loop devices of its disks. Pods' block
// devices come first, because their loop devices are found by their mounts.
func (l Layout) releaseMounts(ctx context.Context) error {
	return errors.Join(
		blockpin.New(blockpin.Deps{}).UnpinBelow(ctx, l.KubeletDir()),
		removal.UnmountBelow(l.RunDir),
		l.unmountData(),
		l.detachDisks(),
	)
}

// mountDirs are the directories of the data directory in which the cluster's components mount.
func (l Layout) mountDirs() []string { return []string{l.ContainerdRoot(), l.KubeletDir()} }

func (l Layout) unmountData() error {
	var errs []error
	for _, dir := range l.mountDirs() {
		errs = append(errs, removal.UnmountBelow(dir))
	}
	return errors.Join(errs...)
}

// cleanupHost removes the resources that are named by the cluster's ID: cgroups with their processes, network, run
// directory.
func (l Layout) cleanupHost(ctx context.Context) error {
	return errors.Join(
		removal.Cgroups(ctx, l.CgroupRoot()),
		l.cleanupNetwork(ctx),
		l.removeProxyRules(ctx),
		l.removeAddressFilter(ctx),
		l.removeFirewallRules(ctx),
		l.removeMasquerade6(ctx),
		l.removeAddresses(),
		l.removePodRoutes(),
		l.removeBridge(),
		removal.Tree(l.RunDir),
	)
}

// isClean reports whether no earlier run left anything. If so, a failed start removes what it created; otherwise that may
// belong to Pods that still run.
func (l Layout) isClean() bool {
	_, err := os.Stat(l.RunDir)
	return errors.Is(err, fs.ErrNotExist)
}

// stopShims stops the runtime's shims of this cluster, and thereby their containers.
func (l Layout) stopShims(ctx context.Context) error {
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range procs {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended meanwhile
		}
		argv := strings.Split(string(data), "\x00")
		if !strings.HasPrefix(filepath.Base(argv[0]), "containerd-shim") || !hasSocketArgument(argv, l.ContainerdSocket()) {
			continue
		}
		if pid, err := strconv.Atoi(strings.Split(file, "/")[2]); err == nil {
			errs = append(errs, removal.StopProcess(ctx, pid))
		}
	}
	return errors.Join(errs...)
}

func hasSocketArgument(argv []string, socket string) bool {
	for _, arg := range argv {
		if arg == socket || strings.HasSuffix(arg, "="+socket) {
			return true
		}
	}
	return false
}

// checkOwn returns an error, which names the flag, if the data directory has files that are not of a cluster.
func (l Layout) checkOwn(flag string) error {
	if _, err := os.Stat(l.statePath()); err == nil || l.isPartlyRestored() {
		return nil
	}
	foreign, err := l.foreignContent()
	if err != nil {
		return err
	}
	if foreign != "" {
		return fmt.Errorf("%s: %s has no cluster.json, so berth did not create it; delete it yourself", flag, l.DataDir)
	}
	return nil
}

// Reset stops what still runs of the cluster and deletes its data directory, if berth created that. Of one that is a file system of its
// own it deletes the content.
func (l Layout) Reset(ctx context.Context) error {
	if _, err := os.Stat(l.DataDir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := l.checkOwn("--reset"); err != nil {
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
	// The directory of its kubelet may be elsewhere, and not where this start is to have it.
	former := l
	if saved, err := readState(l.statePath()); err == nil { // a damaged state does not name it
		former.KubeletRoot = saved.KubeletRoot
	}
	if err := former.cleanup(ctx); err != nil {
		return err
	}
	if former.KubeletRoot != "" {
		if err := removal.Tree(former.KubeletRoot); err != nil {
			return err
		}
	}
	return l.removeDataDir()
}

func (l Layout) removeDataDir() error {
	mounted, err := mountinfo.Mounted(l.DataDir)
	if err != nil {
		return fmt.Errorf("delete %s: %w", l.DataDir, err)
	}
	if !mounted {
		return removal.Tree(l.DataDir)
	}
	entries, err := os.ReadDir(l.DataDir)
	errs := []error{err}
	for _, entry := range entries {
		if entry.Name() != removal.LostAndFound {
			errs = append(errs, removal.Tree(filepath.Join(l.DataDir, entry.Name())))
		}
	}
	return errors.Join(errs...)
}
