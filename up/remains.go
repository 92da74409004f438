package up

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Remains is what one dead cluster left on the machine.
type Remains struct {
	// ID is the cluster's.
	ID string
	// RunDir is its directory below /run/berth, empty if there is none.
	RunDir string
	// Mounts are those below RunDir, Cgroups its topmost ones, Shims the process IDs of its containers' shims.
	Mounts  []string
	Cgroups []string
	Shims   []int
	// Bridge says that its pod bridge is there.
	Bridge bool
}

var idPattern = regexp.MustCompile(`^[0-9a-f]{8}$`)

// Leftovers finds, below root, what clusters left that no process holds any more. A cluster lives as long as a process
// has its data directory's lock open, or a process of its own still runs.
func Leftovers(root string) ([]*Remains, error) {
	live, shims := processes(root)
	found := make(map[string]*Remains)
	of := func(id string) *Remains {
		if found[id] == nil {
			found[id] = &Remains{ID: id, Shims: shims[id]}
		}
		return found[id]
	}
	dirs, _ := filepath.Glob(filepath.Join(root, "run/berth/*")) // the pattern is right
	for _, dir := range dirs {
		if id := filepath.Base(dir); idPattern.MatchString(id) {
			of(id).RunDir = dir
		}
	}
	groups, _ := filepath.Glob(filepath.Join(root, "sys/fs/cgroup/berth-*"))
	deeper, _ := filepath.Glob(filepath.Join(root, "sys/fs/cgroup/*/berth-*"))
	for _, group := range append(groups, deeper...) {
		if id := strings.TrimPrefix(filepath.Base(group), "berth-"); idPattern.MatchString(id) {
			of(id).Cgroups = append(of(id).Cgroups, group)
		}
	}
	bridges, _ := filepath.Glob(filepath.Join(root, "sys/class/net/berth*"))
	for _, bridge := range bridges {
		if id := strings.TrimPrefix(filepath.Base(bridge), "berth"); idPattern.MatchString(id) {
			of(id).Bridge = true
		}
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(filepath.Join(root, "run/berth")))
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	for _, mount := range mounts {
		rest, ok := strings.CutPrefix(mount.Mountpoint, filepath.Join(root, "run/berth")+"/")
		if id, _, _ := strings.Cut(rest, "/"); ok && idPattern.MatchString(id) {
			of(id).Mounts = append(of(id).Mounts, mount.Mountpoint)
		}
	}
	var dead []*Remains
	for id, r := range found {
		if !live[id] {
			dead = append(dead, r)
		}
	}
	slices.SortFunc(dead, func(a, b *Remains) int { return strings.Compare(a.ID, b.ID) })
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

// Remove takes everything away, as the end of a run does; the cluster's data directory stays. It looks again before: the
// cluster may have come to life since it was found.
func (r *Remains) Remove(ctx context.Context) error {
	if live, _ := processes("/"); live[r.ID] {
		return fmt.Errorf("cluster %s runs again: it is left alone", r.ID)
	}
	l := Layout{ID: r.ID, RunDir: runDir(r.ID)}
	return errors.Join(l.endShims(ctx), unmountBelow(l.RunDir), l.sweepMachine(ctx))
}
