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
	"github.com/berth-dev/berth/up/firewall"
	"github.com/berth-dev/berth/up/removal"
)

// Leftover is what one dead cluster left behind on the machine.
type Leftover struct {
	// ID is the cluster's.
	ID string
	// RunDir is its directory below /run/berth, empty if there is none.
	RunDir string
	// DataDir is its data directory, empty if unknown.
	DataDir string
	// Mounts are those below RunDir and in the mount directories of DataDir, Disks the images in DataDir that loop devices
	// use, Cgroups its topmost cgroups, Shims the process IDs of its containers' shims.
	Mounts  []string
	Disks   []string
	Cgroups []string
	Shims   []int
	// Bridge says that its pod bridge exists; Rules are the Pod ranges that the firewall still masquerades for it, Accepts says
	// that the firewall accepts its Pods' packets, and Tables counts its tables of nftables.
	Bridge  bool
	Rules   []netip.Prefix
	Accepts bool
	Tables  int
}

// hostState is the state of the machine in which leftovers are searched.
type hostState struct {
	// root is the parent directory of proc, sys and run.
	root string
	// mounts are all mount points, disks the images of all loop devices, rules the masqueraded ranges by bridge, accepted the
	// interfaces whose packets the firewall accepts, tables the names of the tables of nftables in all families.
	mounts, disks []string
	rules         map[string][]netip.Prefix
	accepted      []string
	tables        []string
}

// readHostState reads the state of this machine. Reading the firewall's rules needs root; without it there are none.
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
	if os.Geteuid() != 0 {
		return s, nil
	}
	tables, err := listTables(ctx)
	if err != nil {
		tables = nil // a machine without nft or without nftables has none
	}
	for table := range tables {
		s.tables = append(s.tables, table.name)
	}
	if _, err := exec.LookPath("iptables"); err != nil {
		return s, nil //nolint:nilerr // no iptables, no rules of it
	}
	if s.accepted, err = firewall.Interfaces(ctx); err != nil {
		return s, err
	}
	s.rules, err = containerd.Masquerades(ctx)
	return s, err
}

var idPattern = regexp.MustCompile(`^[0-9a-f]{8}$`)

// FindLeftovers finds the leftovers of dead clusters. A cluster is alive as long as a process has its data directory's
// lock open, or one of its own processes runs. With an error it still returns what it found.
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
	// Each entry that matches the pattern belongs to the cluster whose ID follows the prefix.
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
	for _, name := range s.accepted {
		if id, ok := strings.CutPrefix(name, "berth"); ok && idPattern.MatchString(id) {
			of(id).Accepts = true
		}
	}
	for _, table := range s.tables {
		if id, ok := strings.CutPrefix(table, "berth"); ok && idPattern.MatchString(id) {
			of(id).Tables++
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

// addFromDataDirs adds the mounts and disks in data directories. A directory is a data directory if its ID is that of a
// leftover, or if it has a cluster's state. Mounts outside of the cluster's mount directories belong to others.
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
func within(path, dir string) bool {
	relative, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(relative)
}

// processes finds the live clusters, and the shims of all clusters.
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

// Remove removes the leftovers as the end of a run does; the cluster's data directory stays. It fails if the cluster has
// been started since it was found.
func (r *Leftover) Remove(ctx context.Context) error {
	if live, _ := processes("/"); live[r.ID] {
		return fmt.Errorf("cluster %s is running again: nothing removed", r.ID)
	}
	l := Layout{ID: r.ID, RunDir: runDir(r.ID)}
	if r.DataDir == "" {
		return errors.Join(l.stopShims(ctx), removal.UnmountBelow(l.RunDir), l.cleanupHost(ctx))
	}
	l.DataDir = r.DataDir
	if saved, err := readState(l.statePath()); err == nil { // without it the routes and addresses of the range stay
		l.PodCIDR, l.LoadBalancerCIDR, l.KubeletRoot = saved.PodCIDR, saved.LoadBalancerCIDR, saved.KubeletRoot
		l.APIAddress = saved.APIAddress // which is the machine's, also if it is in the range of Services
	}
	lock, err := l.lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	return l.cleanup(ctx)
}
