package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
)

// OrphanCleanupPeriod is the default period of [Config.RunOrphanCleanup].
const OrphanCleanupPeriod = 2 * time.Minute

// RunOrphanCleanup removes what interrupted calls of a Pod's start and shims that died have left behind, immediately and after each
// period until ctx is done. Orphans can appear at any time, and no event reports them.
func (c Config) RunOrphanCleanup(ctx context.Context, clock clock.WithTicker, period time.Duration, logger *slog.Logger) {
	ticker := clock.NewTicker(period)
	defer ticker.Stop()
	for {
		for _, orphans := range []struct {
			kind   string
			remove func(context.Context) ([]string, error)
		}{
			{"shim", c.KillOrphanShims},
			{"container", c.DeleteOrphanContainers},
			{"task", c.DeleteOrphanTasks},
			{"sandbox", c.DeleteOrphanSandboxes},
			{"shared memory", c.ReleaseSharedMemory},
			{"address", c.ReleaseAddresses},
		} {
			removed, err := orphans.remove(ctx)
			if len(removed) > 0 {
				logger.Info("removed orphans of interrupted calls", "kind", orphans.kind, "ids", removed)
			}
			if err != nil && ctx.Err() == nil {
				logger.Warn("failed to remove orphans", "kind", orphans.kind, "error", err)
			}
		}
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return
		}
	}
}

// KillOrphanShims kills the shims of this containerd that have no bundle, and returns their ids. containerd creates a
// task's bundle before it starts the shim, finds shims by their bundles when it starts itself, and removes the bundle
// last: a shim without one is always an orphan. A shim that still has containers of its Pod, with bundles of their own,
// stays.
func (c Config) KillOrphanShims(ctx context.Context) (ended []string, err error) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, dir := range processes {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		id := c.shimID(pid)
		if id == "" || !c.isOrphanShim(id) {
			continue
		}
		killed, err := c.killShim(ctx, pid, id)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if killed {
			ended = append(ended, id)
		}
	}
	return ended, errors.Join(errs...)
}

// shimID returns the id of a process that is a shim of this containerd, empty for any other process.
func (c Config) shimID(pid int) string {
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return "" // it has ended meanwhile
	}
	return c.shimOfCommand(string(command))
}

// shimOfCommand is shimID for a command line, which any process, also one in a Pod, may make look like that of a shim.
func (c Config) shimOfCommand(command string) string {
	argv := strings.Split(command, "\x00")
	if !strings.HasPrefix(filepath.Base(argv[0]), "containerd-shim") {
		return ""
	}
	flags := make(map[string]string)
	for i := range argv[:len(argv)-1] {
		flags[argv[i]] = argv[i+1]
	}
	if isShimCall(argv) || flags["-address"] != c.Socket() || flags["-namespace"] != criNamespace {
		return ""
	}
	id := flags["-id"]
	if !isContainerID(id) {
		return ""
	}
	return id
}

// isContainerID reports whether the text can be the id of a container or a sandbox, and thus the name of a file.
func isContainerID(id string) bool {
	return id != "." && filepath.IsLocal(id) && filepath.Base(id) == id
}

// isShimCall reports whether a process of a shim's program is one of the short-lived calls `containerd-shim … start` and `… delete`.
// The call that starts Berth's shim becomes the shim.
func isShimCall(argv []string) bool {
	if filepath.Base(argv[0]) == ShimProgram(RuntimeBerth) {
		return slices.Contains(argv, "delete")
	}
	return slices.Contains(argv, "-publish-binary") // which the shim itself does not have
}

// isOrphanShim says that no bundle leads to the shim of that id: neither its own, nor that of a container in its Pod.
func (c Config) isOrphanShim(id string) bool {
	if c.mayHaveBundle(id) {
		return false
	}
	// A hidden bundle is being removed, see RemoveDeadBundles: its container is gone.
	specs, _ := filepath.Glob(filepath.Join(c.bundles(), "[^.]*", "config.json")) // the pattern is right
	for _, path := range specs {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var spec struct{ Annotations map[string]string }
		if err != nil || json.Unmarshal(data, &spec) != nil || spec.Annotations["io.kubernetes.cri.sandbox-id"] == id {
			return false
		}
	}
	return true
}

// mayHaveBundle reports whether containerd has a bundle of that id. It returns true if that cannot be determined.
func (c Config) mayHaveBundle(id string) bool {
	_, err := os.Stat(filepath.Join(c.bundles(), id))
	return !errors.Is(err, fs.ErrNotExist)
}

// shimEnd is how long a shim may take, once its Pod is removed, until it has ended itself.
const shimEnd = time.Second

// killShim kills a shim that does not end itself within shimEnd, with all that it has started, and removes its socket and the container
// that it may have created.
func (c Config) killShim(ctx context.Context, pid int, id string) (killed bool, err error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open stray shim, process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	// The PID may have been reused before it was opened; from here on it cannot be.
	if c.shimID(pid) != id {
		return false, nil
	}
	sockets, err := c.socketsOf(pid)
	if err != nil {
		return false, fmt.Errorf("end stray shim %s: %w", id, err)
	}
	if endsWithin(fd, shimEnd) {
		return false, nil
	}
	started, err := childrenOf(pid)
	if err != nil {
		return false, fmt.Errorf("end stray shim %s: %w", id, err)
	}
	defer started.close()
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return false, fmt.Errorf("end stray shim %s, process %d: %w", id, pid, err)
	}
	err = c.removeShim(ctx, id, sockets)
	// runc does not know the first process of a container whose creation has not come far.
	if killErr := started.kill(); killErr != nil {
		err = errors.Join(err, fmt.Errorf("end the processes of stray shim %s: %w", id, killErr))
	}
	return true, err
}

// endsWithin reports whether the process of the pidfd ends within the limit. Signals, as the Go runtime sends them to its own threads,
// interrupt the wait, but do not end it.
func endsWithin(fd int, limit time.Duration) bool {
	for until := time.Now().Add(limit); ; {
		ended, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(time.Until(until), 0).Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return err == nil && ended > 0
		}
	}
}

// removeShim removes the sockets of a shim that was killed, and the container that it may have created.
func (c Config) removeShim(ctx context.Context, id string, sockets []string) error {
	var errs []error
	if _, err := os.Stat(filepath.Join(c.runcRoot(), id)); err == nil {
		if err := c.deleteContainer(ctx, id); err != nil {
			errs = append(errs, fmt.Errorf("end stray shim %s: %w", id, err))
		}
	}
	for _, socket := range sockets {
		if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove the socket of stray shim %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// DeleteOrphanContainers deletes runc's containers that have no bundle, and returns their ids. A container's bundle is
// created before runc is called and removed after runc has deleted the container, so a container without one is left
// from a call that was interrupted together with its shim.
func (c Config) DeleteOrphanContainers(ctx context.Context) (deleted []string, err error) {
	states, _ := filepath.Glob(filepath.Join(c.runcRoot(), "*")) // the pattern is right
	var errs []error
	for _, state := range states {
		id := filepath.Base(state)
		if c.mayHaveBundle(id) {
			continue
		}
		if err := c.deleteContainer(ctx, id); err != nil {
			errs = append(errs, err)
			continue
		}
		deleted = append(deleted, id)
	}
	return deleted, errors.Join(errs...)
}

// runcRoot is the directory in which runc keeps the state of each container, by its id.
func (c Config) runcRoot() string { return filepath.Join(c.RunDir, "runc", criNamespace) }

// deleteContainer kills and deletes a container with runc, also one that was not created completely.
func (c Config) deleteContainer(ctx context.Context, id string) error {
	runc := exec.CommandContext(ctx, filepath.Join(c.BinDir, "runc"), "--root", c.runcRoot(), "delete", "--force", id)
	if out, err := runc.CombinedOutput(); err != nil {
		return fmt.Errorf("delete orphaned container %s: %w: %s", id, err, out)
	}
	return nil
}

// socketsOf lists the sockets in the shims' directory that a process listens on.
func (c Config) socketsOf(pid int) ([]string, error) {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) // the pattern is right
	held := make(map[string]bool)
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil {
			held[target] = true
		}
	}
	sockets, err := c.shimSockets()
	if err != nil {
		return nil, err
	}
	var found []string
	for path, inode := range sockets {
		if held["socket:["+inode+"]"] {
			found = append(found, path)
		}
	}
	return found, nil
}

// shimSockets returns the sockets in the shims' directory that a process has bound, with their inodes.
func (c Config) shimSockets() (map[string]string, error) {
	table, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	sockets := make(map[string]string)
	for line := range strings.Lines(string(table)) {
		// Num RefCount Protocol Flags Type St Inode Path
		fields := strings.Fields(line)
		if len(fields) == 8 && filepath.Dir(fields[7]) == c.shimDir() {
			sockets[fields[7]] = fields[6]
		}
	}
	return sockets, nil
}

// RemoveDeadSockets removes the sockets of shims that have exited without removing them. Call it before containerd
// starts.
func (c Config) RemoveDeadSockets() error {
	paths, _ := filepath.Glob(filepath.Join(c.shimDir(), "*")) // the pattern is right
	bound, err := c.shimSockets()
	if err != nil {
		return fmt.Errorf("find the sockets of shims that have ended: %w", err)
	}
	var errs []error
	for _, path := range paths {
		if _, ok := bound[path]; ok {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove the socket of a shim that has ended: %w", err))
		}
	}
	return errors.Join(errs...)
}

// RemoveDeadBundles removes the bundles that a containerd was removing when it died: it renames a bundle to start with a
// dot before it deletes it, and ignores such bundles later. Call it before containerd starts.
func (c Config) RemoveDeadBundles() error {
	paths, _ := filepath.Glob(filepath.Join(c.bundles(), ".*")) // the pattern is right
	var errs []error
	for _, path := range paths {
		mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(path))
		if err == nil && len(mounts) > 0 {
			err = fmt.Errorf("%s is still mounted", mounts[0].Mountpoint) // never delete data behind a mount
		}
		if err == nil {
			err = os.RemoveAll(path)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("remove a bundle that containerd was removing: %w", err))
		}
	}
	return errors.Join(errs...)
}
