package up

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

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
		unmountBelow(l.RunDir),
		l.unmountData(),
		l.detachDisks(),
	)
}

// mountDirs are the directories of the data directory in which the cluster's components mount.
func (l Layout) mountDirs() []string { return []string{l.ContainerdRoot(), l.KubeletDir()} }

func (l Layout) unmountData() error {
	var errs []error
	for _, dir := range l.mountDirs() {
		errs = append(errs, unmountBelow(dir))
	}
	return errors.Join(errs...)
}

// cleanupHost removes the resources that are named by the cluster's ID: cgroups with their processes, network, run
// directory.
func (l Layout) cleanupHost(ctx context.Context) error {
	return errors.Join(
		removeCgroups(ctx, l.CgroupRoot()),
		l.cleanupNetwork(ctx),
		l.removeProxyRules(ctx),
		l.removeBridge(),
		removeTree(l.RunDir),
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
			errs = append(errs, stopProcess(ctx, pid))
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

// unmountBelow unmounts everything mounted below dir, the deepest first.
func unmountBelow(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("read the mount table: %w", err)
	}
	sort.Slice(mounts, func(i, j int) bool { return len(mounts[i].Mountpoint) > len(mounts[j].Mountpoint) })
	var errs []error
	for _, mount := range mounts {
		if mount.Mountpoint == dir {
			// The kubelet's root may be a mount of itself, made to share what is mounted below it.
			err = unix.Unmount(mount.Mountpoint, unix.MNT_DETACH)
		} else if err = unix.Unmount(mount.Mountpoint, 0); errors.Is(err, unix.EBUSY) {
			err = unix.Unmount(mount.Mountpoint, unix.MNT_DETACH)
		}
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", mount.Mountpoint, err))
		}
	}
	return errors.Join(errs...)
}

// removeCgroups removes a cgroup and its descendants from every hierarchy. A cgroup can be removed once it has no
// process, so it kills the processes in them, which belong to containers whose shims were killed.
func removeCgroups(ctx context.Context, root string) error {
	tops, err := filepath.Glob(filepath.Join("/sys/fs/cgroup/*", root))
	if err != nil {
		return err
	}
	tops = append(tops, filepath.Join("/sys/fs/cgroup", root))
	var errs []error
	for _, top := range tops {
		var dirs []string
		err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		})
		errs = append(errs, err)
		for i := len(dirs) - 1; i >= 0; i-- {
			errs = append(errs, killCgroup(ctx, dirs[i]))
			if err := unix.Rmdir(dirs[i]); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("remove cgroup %s: %w", dirs[i], err))
			}
		}
	}
	return errors.Join(errs...)
}

// killCgroup kills the processes of one cgroup and waits until they have ended.
func killCgroup(ctx context.Context, cgroup string) error {
	data, err := os.ReadFile(filepath.Join(cgroup, "cgroup.procs"))
	if err != nil {
		return nil //nolint:nilerr // the cgroup is gone, or removing it reports the error
	}
	var errs []error
	for line := range strings.Lines(string(data)) {
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
			errs = append(errs, killProcess(ctx, pid))
		}
	}
	return errors.Join(errs...)
}

// removeTree removes a directory unless something is mounted below it: it never deletes data behind a mount.
func removeTree(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("read the mount table: %w", err)
	}
	if len(mounts) > 0 {
		return fmt.Errorf("%s is still mounted, so %s is left in place", mounts[0].Mountpoint, dir)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

// Reset stops what still runs of the cluster and deletes its data directory, if berth created that.
func (l Layout) Reset(ctx context.Context) error {
	if _, err := os.Stat(l.DataDir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, err := os.Stat(l.statePath()); err != nil {
		foreign, listErr := l.foreignContent()
		if listErr != nil {
			return listErr
		}
		if foreign != "" {
			return fmt.Errorf("--reset: %s has no cluster.json, so berth did not create it; delete it yourself", l.DataDir)
		}
	}
	lock, err := l.lock()
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
	return removeTree(l.DataDir)
}
