package up

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/berth-dev/berth/internal/loopdev"
	"github.com/berth-dev/berth/up/containerd"
)

// Leftover is what one dead cluster left on the machine.
type Leftover struct {
	// ID is the cluster's.
	ID string
	// RunDir is its directory below /run/berth, empty if there is none.
	RunDir string
	// DataDir is its data directory, empty if nothing that is left tells.
	DataDir string
	// Mounts are those below RunDir and in the places for mounts of DataDir, Disks the images in DataDir that loop
	// devices hold, Cgroups its topmost ones, Shims the process IDs of its containers' shims.
	Mounts  []string
	Disks   []string
	Cgroups []string
	Shims   []int
	// Bridge says that its pod bridge is there; Rules are the Pods' ranges that the firewall still masquerades for it.
	Bridge bool
	Rules  []netip.Prefix
}

// hostState is where remains are looked for.
type hostState struct {
	// root is the directory that /proc, /sys and /run are in.
	root string
	// mounts are all mount points, disks the images of all loop devices, rules the ranges that are masqueraded by bridge.
	mounts, disks []string
	rules         map[string][]netip.Prefix
}

// readHostState is the scene of Leftovers. Without root there is no looking at the firewall.
func readHostState(ctx context.Context) (hostState, error) {
	s := hostState{root: "/"}
	table, err := mountinfo.GetMounts(nil)
	if err != nil {
		return s, fmt.Errorf("read the mount table: %w", err)
	}
	for _, mount := range table {
		s.mounts = append(s.mounts, mount.Mountpoint)
	}
	if _, err := loopdev.New().List(func(image string) bool {
		s.disks = append(s.disks, image)
		return false
	}); err != nil {
		return s, fmt.Errorf("list loop devices: %w", err)
	}
	if _, err := exec.LookPath("iptables"); err != nil || os.Geteuid() != 0 {
		return s, nil //nolint:nilerr // no iptables, no rules of it
	}
	s.rules, err = containerd.Masquerades(ctx)
	return s, err
}

var idPattern = regexp.MustCompile(`^[0-9a-f]{8}$`)

// FindLeftovers finds what clusters left that no process holds any more. A cluster lives as long as a process has its data
// directory's lock open, or a process of its own still runs. With an error it tells what it found nevertheless.
func FindLeftovers(ctx context.Context) ([]*Leftover, error) {
	s, err := readHostState(ctx)
	return s.leftovers(), err
}

func (s hostState) leftovers() []*Leftover {
	live, shims := processes(s.root)
	found := make(map[string]*Leftover)
	of := func(id string) *Leftover {
		if found[id] == nil {
			found[id] = &Leftover{ID: id, Shims: shims[id]}
		}
		return found[id]
	}
	// Each entry that the pattern matches is the cluster's whose ID follows the prefix.
	each := func(pattern, prefix string, report func(r *Leftover, path string)) {
		paths, _ := filepath.Glob(filepath.Join(s.root, pattern)) // the patterns are right
		for _, path := range paths {
			if id := strings.TrimPrefix(filepath.Base(path), prefix); idPattern.MatchString(id) {
				report(of(id), path)
			}
		}
	}
	each("run/berth/*", "", func(r *Leftover, dir string) { r.RunDir = dir })
	for _, pattern := range []string{"sys/fs/cgroup/berth-*", "sys/fs/cgroup/*/berth-*"} {
		each(pattern, "berth-", func(r *Leftover, group string) { r.Cgroups = append(r.Cgroups, group) })
	}
	each("sys/class/net/berth*", "berth", func(r *Leftover, _ string) { r.Bridge = true })
	for bridge, rules := range s.rules {
		if id, ok := strings.CutPrefix(bridge, "berth"); ok && idPattern.MatchString(id) {
			of(id).Rules = rules
		}
	}
	for _, mount := range s.mounts {
		rest, ok := strings.CutPrefix(mount, filepath.Join(s.root, "run/berth")+"/")
		if id, _, _ := strings.Cut(rest, "/"); ok && idPattern.MatchString(id) {
			of(id).Mounts = append(of(id).Mounts, mount)
		}
	}
	s.addFromDataDirs(found, of)
	var dead []*Leftover
	for id, r := range found {
		if !live[id] {
			dead = append(dead, r)
		}
	}
	slices.SortFunc(dead, func(a, b *Leftover) int { return strings.Compare(a.ID, b.ID) })
	return dead
}

// addFromDataDirs adds the mounts and disks in data directories. That a directory is a cluster's is proved by the ID of one
// that was found, or by the state in it; what lies elsewhere in it than where the cluster's parts mount is whoever's who
// put it there.
func (s hostState) addFromDataDirs(found map[string]*Leftover, of func(id string) *Leftover) {
	initialized := func(dir string) bool {
		if found[clusterID(dir)] != nil {
			return true
		}
		_, err := readState((Layout{Config: Config{DataDir: dir}}).statePath())
		return err == nil
	}
	each := func(paths []string, places func(Layout) []string, report func(r *Leftover, path string)) {
		for _, path := range paths {
			for dir := filepath.Dir(path); dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
				l := Layout{Config: Config{DataDir: dir}}
				if slices.ContainsFunc(places(l), func(place string) bool { return within(path, place) }) && initialized(dir) {
					r := of(clusterID(dir))
					r.DataDir = dir
					report(r, path)
				}
			}
		}
	}
	each(s.mounts, Layout.mountDirs, func(r *Leftover, mount string) { r.Mounts = append(r.Mounts, mount) })
	each(s.disks, func(l Layout) []string { return []string{l.disksDir()} },
		func(r *Leftover, disk string) { r.Disks = append(r.Disks, disk) })
}

// within reports whether path is dir or lies below it.
func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

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

// Remove takes everything away, as the end of a run does; the cluster's data directory stays. It looks again before: the
// cluster may have come to life since it was found.
func (r *Leftover) Remove(ctx context.Context) error {
	if live, _ := processes("/"); live[r.ID] {
		return fmt.Errorf("cluster %s runs again: it is left alone", r.ID)
	}
	l := Layout{ID: r.ID, RunDir: runDir(r.ID)}
	if r.DataDir == "" {
		return errors.Join(l.stopShims(ctx), unmountBelow(l.RunDir), l.cleanupHost(ctx))
	}
	l.DataDir = r.DataDir
	lock, err := l.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	return l.cleanup(ctx)
}
