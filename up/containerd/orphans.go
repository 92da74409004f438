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
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
)

// OrphanCleanupPeriod is how often [Config.RunOrphanCleanup] looks by default.
const OrphanCleanupPeriod = 2 * time.Minute

// RunOrphanCleanup ends what calls that were cut off in the middle of a Pod's start have left, at once and each period until
// ctx ends. It can come at any time, and nothing tells of it.
func (c Config) RunOrphanCleanup(ctx context.Context, clock clock.WithTicker, period time.Duration, logger *slog.Logger) {
	ticker := clock.NewTicker(period)
	defer ticker.Stop()
	for {
		for _, lookPath := range []struct {
			what string
			end  func(context.Context) ([]string, error)
		}{
			{"shims that containerd does not know", c.KillOrphanShims},
			{"containers that containerd does not know", c.DeleteOrphanContainers},
			{"tasks of containers that containerd counts as ended", c.DeleteOrphanTasks},
			{"sandboxes that containerd does not know", c.DeleteOrphanSandboxes},
		} {
			ended, err := lookPath.end(ctx)
			if len(ended) > 0 {
				logger.Info("ended "+lookPath.what+": calls that started them were cut off", "ids", ended)
			}
			if err != nil && ctx.Err() == nil {
				logger.Warn("ending "+lookPath.what+" failed", "error", err)
			}
		}
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return
		}
	}
}

// KillOrphanShims ends the shims of this containerd that it cannot know, and returns their ids. containerd makes a task's
// bundle before it starts the shim, finds shims by their bundles when it starts itself, and removes the bundle last of
// all: a shim without one is nobody's, however young it is. One that still holds containers of its Pod, which have
// bundles of their own, is left.
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
		if err := c.killShim(ctx, pid, id); err != nil {
			errs = append(errs, err)
			continue
		}
		ended = append(ended, id)
	}
	return ended, errors.Join(errs...)
}

// shimID is the id for which a process is a shim of this containerd, empty if it is none.
func (c Config) shimID(pid int) string {
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return "" // it has ended meanwhile
	}
	argv := strings.Split(string(command), "\x00")
	if !strings.HasPrefix(filepath.Base(argv[0]), "containerd-shim") {
		return ""
	}
	flags := make(map[string]string)
	for i := range argv[:len(argv)-1] {
		flags[argv[i]] = argv[i+1]
	}
	// The short-lived calls `containerd-shim … start` and `… delete` are told whom to publish by; the shim itself is not.
	if _, call := flags["-publish-binary"]; call || flags["-address"] != c.Socket() || flags["-namespace"] != criNamespace {
		return ""
	}
	return flags["-id"]
}

// isOrphanShim says that no bundle leads to the shim of that id: neither its own, nor that of a container in its Pod.
func (c Config) isOrphanShim(id string) bool {
	if c.mayHaveBundle(id) {
		return false
	}
	// A hidden bundle is one whose removal has begun, see RemoveDeadBundles: its container is gone.
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

// mayHaveBundle reports whether containerd has a bundle of that id, also where that cannot be seen.
func (c Config) mayHaveBundle(id string) bool {
	_, err := os.Stat(filepath.Join(c.bundles(), id))
	return !errors.Is(err, fs.ErrNotExist)
}

// killShim kills a shim, and takes away what it may have made: a container that was not let run, and its socket.
func (c Config) killShim(ctx context.Context, pid int, id string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open stray shim, process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	// The number may have gone to another process since it was looked at; from here on it cannot.
	if c.shimID(pid) != id {
		return nil
	}
	sockets, err := c.socketsOf(pid)
	if err != nil {
		return fmt.Errorf("end stray shim %s: %w", id, err)
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end stray shim %s, process %d: %w", id, pid, err)
	}
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

// DeleteOrphanContainers deletes what runc still holds of containers that no bundle leads to, and returns their ids. A
// container's bundle is there before runc is called and goes after runc has deleted the container, so what is left
// without one belongs to a call that was cut off together with its shim.
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

// deleteContainer has runc end and forget a container, however far its making came.
func (c Config) deleteContainer(ctx context.Context, id string) error {
	runc := exec.CommandContext(ctx, filepath.Join(c.BinDir, "runc"), "--root", c.runcRoot(), "delete", "--force", id)
	if out, err := runc.CombinedOutput(); err != nil {
		return fmt.Errorf("delete container %s, which containerd does not know: %w: %s", id, err, out)
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

// shimSockets are the sockets in the shims' directory that somebody has bound, with their inodes.
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

// RemoveDeadSockets removes the sockets of shims that have ended without doing so. It is for the time before containerd
// starts, when nobody makes new ones.
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

// RemoveDeadBundles removes the bundles that a containerd was removing when it died: it hides one, by a dot before its
// name, before it deletes it, and looks at hidden ones never again. It is for the time before containerd starts.
func (c Config) RemoveDeadBundles() error {
	paths, _ := filepath.Glob(filepath.Join(c.bundles(), ".*")) // the pattern is right
	var errs []error
	for _, path := range paths {
		mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(path))
		if err == nil && len(mounts) > 0 {
			err = fmt.Errorf("%s is still mounted", mounts[0].Mountpoint) // what is behind a mount is not ours to delete
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
