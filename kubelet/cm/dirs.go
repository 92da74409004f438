package cm

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	cgroupslib "github.com/opencontainers/cgroups"
	corev1 "k8s.io/api/core/v1"
)

// Dirs are the directories with a cgroup's usage. Without a hierarchy that counts it, a directory is empty.
type Dirs struct {
	// CPU has the files of the controller cpuacct, Memory those of memory. With Unified, version 2, they are one.
	CPU, Memory string
	// Group is the cgroup's path from the root of the hierarchy that counts memory, empty without one.
	Group   string
	Unified bool
}

// Containers returns the IDs of the containers and sandboxes that have a cgroup below a Pod's, whose directories d has, in any order: a runtime
// gives a container one in every hierarchy. A Pod without a cgroup has none.
func (d Dirs) Containers() ([]string, error) {
	dir := cmp.Or(d.Memory, d.CPU)
	if dir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list the cgroups of containers: %w", err)
	}
	var ids []string
	for _, entry := range entries {
		if id, ok := containerID(entry.Name()); ok && entry.IsDir() {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// PodsDirs returns those of the cgroup of all Pods.
func (m *Manager) PodsDirs() (Dirs, error) {
	return m.dirs(m.qosCgroup(corev1.PodQOSGuaranteed).path(m.Driver()))
}

// PodDirs returns those of one Pod's cgroup.
func (m *Manager) PodDirs(pod *corev1.Pod) (Dirs, error) {
	return m.dirs(m.podCgroup(pod).path(m.Driver()))
}

// CgroupDirs returns those of any cgroup, by its path from the root of the hierarchy.
func (m *Manager) CgroupDirs(name string) (Dirs, error) { return m.dirs(name) }

// dirs returns those of the cgroup at the path.
func (m *Manager) dirs(group string) (Dirs, error) {
	return m.findDirs(func(Hierarchy, string) (string, error) { return group, nil })
}

// ProcessDirs returns those of the cgroup of a process, whose file /proc/PID/cgroup is given. alone is false if it is
// the root cgroup, whose usage is that of the whole machine.
func (m *Manager) ProcessDirs(file string) (dirs Dirs, alone bool, err error) {
	groups, err := cgroupslib.ParseCgroupFile(file)
	if err != nil {
		return Dirs{}, false, fmt.Errorf("read the cgroups of a process: %w", err)
	}
	alone = true
	dirs, err = m.findDirs(func(h Hierarchy, controller string) (string, error) {
		group := groups[controller]
		if h.Unified {
			group = groups[""]
		}
		below, ok := strings.CutPrefix(group+"/", strings.TrimSuffix(path.Join("/", h.Root), "/")+"/")
		if !ok || strings.Contains(group, "..") {
			return "", fmt.Errorf("cgroup %q is outside of the hierarchy mounted at %q", group, h.Dir)
		}
		alone = alone && strings.Trim(below, "/") != ""
		return below, nil
	})
	return dirs, alone, err
}

// findDirs returns the directories of the cgroup that where names in each hierarchy, for the controllers that count.
func (m *Manager) findDirs(where func(h Hierarchy, controller string) (string, error)) (Dirs, error) {
	hierarchies, err := m.mountedHierarchies()
	if err != nil {
		return Dirs{}, err
	}
	var dirs Dirs
	for _, h := range hierarchies {
		counting := map[string]*string{"cpuacct": &dirs.CPU, "memory": &dirs.Memory}
		if h.Unified {
			counting = map[string]*string{"cpu": &dirs.CPU, "memory": &dirs.Memory}
		}
		for controller, dir := range counting {
			if !slices.Contains(h.Controllers, controller) {
				continue
			}
			group, err := where(h, controller)
			if err != nil {
				return Dirs{}, err
			}
			*dir, dirs.Unified = filepath.Join(h.Dir, group), h.Unified
			if controller == "memory" {
				dirs.Group = path.Join("/", group)
			}
		}
	}
	return dirs, nil
}
