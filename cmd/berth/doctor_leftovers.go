package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// remains is what one dead cluster left on the machine.
type remains struct {
	id      string
	runDir  string
	mounts  []string
	cgroups []string
	shims   []int
	bridge  bool
}

var idPattern = regexp.MustCompile(`^[0-9a-f]{8}$`)

// leftovers finds, below root, what clusters left that no process holds any more. A cluster lives as long as a process
// has its data directory's lock open, or a process of its own still runs.
func leftovers(root string) ([]*remains, error) {
	live, shims := processes(root)
	found := make(map[string]*remains)
	of := func(id string) *remains {
		if found[id] == nil {
			found[id] = &remains{id: id, shims: shims[id]}
		}
		return found[id]
	}
	dirs, _ := filepath.Glob(filepath.Join(root, "run/berth/*")) // the pattern is right
	for _, dir := range dirs {
		if id := filepath.Base(dir); idPattern.MatchString(id) {
			of(id).runDir = dir
		}
	}
	groups, _ := filepath.Glob(filepath.Join(root, "sys/fs/cgroup/berth-*"))
	deeper, _ := filepath.Glob(filepath.Join(root, "sys/fs/cgroup/*/berth-*"))
	for _, group := range append(groups, deeper...) {
		if id := strings.TrimPrefix(filepath.Base(group), "berth-"); idPattern.MatchString(id) {
			of(id).cgroups = append(of(id).cgroups, group)
		}
	}
	bridges, _ := filepath.Glob(filepath.Join(root, "sys/class/net/berth*"))
	for _, bridge := range bridges {
		if id := strings.TrimPrefix(filepath.Base(bridge), "berth"); idPattern.MatchString(id) {
			of(id).bridge = true
		}
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(filepath.Join(root, "run/berth")))
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	for _, mount := range mounts {
		rest, ok := strings.CutPrefix(mount.Mountpoint, filepath.Join(root, "run/berth")+"/")
		if id, _, _ := strings.Cut(rest, "/"); ok && idPattern.MatchString(id) {
			of(id).mounts = append(of(id).mounts, mount.Mountpoint)
		}
	}
	var dead []*remains
	for id, r := range found {
		if !live[id] {
			dead = append(dead, r)
		}
	}
	slices.SortFunc(dead, func(a, b *remains) int { return strings.Compare(a.id, b.id) })
	return dead, nil
}

// processes finds the clusters that live, and the shims of all.
func processes(root string) (live map[string]bool, shims map[string][]int) {
	live, shims = make(map[string]bool), make(map[string][]int)
	inRunDir := regexp.MustCompile(`/run/berth/([0-9a-f]{8})/`)
	dirs, _ := filepath.Glob(filepath.Join(root, "proc/[0-9]*"))
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // it may have ended meanwhile
		program, _, _ := strings.Cut(string(command), "\x00")
		if match := inRunDir.FindSubmatch(command); match != nil {
			id := string(match[1])
			if strings.HasPrefix(filepath.Base(program), "containerd-shim") {
				shims[id] = append(shims[id], pid)
			} else {
				live[id] = true
			}
		}
		files, _ := filepath.Glob(filepath.Join(dir, "fd/*"))
		for _, file := range files {
			target, err := os.Readlink(file)
			if err != nil || filepath.Base(target) != "lock" {
				continue
			}
			live[clusterID(filepath.Dir(target))] = true
		}
	}
	return live, shims
}

// clusterID is the ID of the cluster with this data directory, as package up derives it.
func clusterID(dataDir string) string {
	sum := sha256.Sum256([]byte(dataDir))
	return hex.EncodeToString(sum[:4])
}

func (r *remains) diagnosis() diagnosis {
	var parts []string
	count := func(n int, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	count(len(r.shims), "containers' shims")
	count(len(r.mounts), "mounts")
	count(len(r.cgroups), "cgroups")
	if r.bridge {
		parts = append(parts, "bridge berth"+r.id)
	}
	if r.runDir != "" {
		parts = append(parts, r.runDir)
	}
	return diagnosis{Name: "cluster " + r.id, Severity: broken, Found: strings.Join(parts, ", "),
		Mend: "`berth up` on its data directory takes it over; else remove it with berth doctor --fix (its data directory stays)",
		ask:  "Remove all of that? Its data directory stays.", fix: r.remove}
}

// remove takes everything away, containers first, so that nothing makes new mounts. It looks again before: the cluster
// may have come to life since it was found.
func (r *remains) remove(ctx context.Context) error {
	if live, _ := processes("/"); live[r.id] {
		return fmt.Errorf("cluster %s runs again: it is left alone", r.id)
	}
	var errs []error
	for _, pid := range r.shims {
		errs = append(errs, killAndWait(ctx, pid))
	}
	for _, group := range r.cgroups {
		errs = append(errs, emptyCgroup(ctx, group))
	}
	slices.SortFunc(r.mounts, func(a, b string) int { return len(b) - len(a) }) // the deepest first
	for _, mount := range r.mounts {
		if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", mount, err))
		}
	}
	if r.bridge {
		link, err := netlink.LinkByName("berth" + r.id)
		if err == nil {
			err = netlink.LinkDel(link)
		}
		if err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
			errs = append(errs, fmt.Errorf("remove bridge berth%s: %w", r.id, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err // what is still mounted must not be deleted through
	}
	if r.runDir == "" {
		return nil
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(r.runDir))
	if err != nil || len(mounts) > 0 {
		return errors.Join(err, fmt.Errorf("%d mounts are left below %s: it stays", len(mounts), r.runDir))
	}
	if err := os.RemoveAll(r.runDir); err != nil {
		return fmt.Errorf("remove %s: %w", r.runDir, err)
	}
	return nil
}

// killAndWait ends a process and waits until the kernel says that it is gone.
func killAndWait(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end process %d: %w", pid, err)
	}
	const patienceMs = 5000
	for ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, patienceMs)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n == 0 {
			return fmt.Errorf("process %d does not end", pid)
		}
		return err
	}
	return ctx.Err()
}

// emptyCgroup ends the processes of a cgroup and of those below it, and removes them all.
func emptyCgroup(ctx context.Context, top string) error {
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
	errs := []error{err}
	for i := len(dirs) - 1; i >= 0; i-- {
		data, _ := os.ReadFile(filepath.Join(dirs[i], "cgroup.procs"))
		for line := range strings.Lines(string(data)) {
			if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
				errs = append(errs, killAndWait(ctx, pid))
			}
		}
		if err := unix.Rmdir(dirs[i]); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("remove cgroup %s: %w", dirs[i], err))
		}
	}
	return errors.Join(errs...)
}
