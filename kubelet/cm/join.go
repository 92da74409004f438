package cm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// namedHierarchy is the hierarchy of cgroup v1 without controllers that programs read to learn the cgroup of a process, where there
// is one: systemd makes it, and container runtimes do where it does not run.
const namedHierarchy = "name=systemd"

// Join moves a process to the cgroup at this path from the root of the hierarchy, in each hierarchy that limits or counts what
// Pods use, and in that of systemd's name. It creates the cgroup.
func (m *Manager) Join(group string, pid int) error {
	dirs, err := m.joinDirs(group)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := move(dir, pid); err != nil {
			return err
		}
	}
	return nil
}

// JoinFromRoot moves the processes of the topmost cgroup to the cgroup at this path, which it creates. The first process, this one
// and the kernel's own stay.
func (m *Manager) JoinFromRoot(group string) error {
	dirs, err := m.joinDirs(group)
	if err != nil {
		return err
	}
	for root, dir := range dirs {
		content, err := os.ReadFile(filepath.Join(root, "cgroup.procs"))
		if err != nil {
			return fmt.Errorf("read the processes of the topmost cgroup: %w", err)
		}
		for field := range strings.FieldsSeq(string(content)) {
			pid, err := strconv.Atoi(field)
			if err != nil || pid <= 1 || pid == os.Getpid() || ofKernel(pid) {
				continue
			}
			if err := move(dir, pid); err != nil {
				return err
			}
		}
	}
	return nil
}

// joinDirs returns the directories of the cgroup by those of the roots of their hierarchies.
func (m *Manager) joinDirs(group string) (map[string]string, error) {
	hierarchies, err := m.mountedHierarchies()
	if err != nil {
		return nil, err
	}
	dirs := map[string]string{}
	for _, h := range hierarchies {
		limits := slices.ContainsFunc(limitControllers, func(controller string) bool { return slices.Contains(h.Controllers, controller) })
		if !limits && !slices.Contains(h.Controllers, "cpuacct") && !slices.Contains(h.Controllers, namedHierarchy) {
			continue
		}
		dir := filepath.Join(h.Dir, filepath.Join("/", group))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("create cgroup %q: %w", group, err)
		}
		dirs[h.Dir] = dir
	}
	return dirs, nil
}

func move(dir string, pid int) error {
	err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644)
	if err != nil && !errors.Is(err, syscall.ESRCH) { // it may have ended
		return fmt.Errorf("move process %d to cgroup %q: %w", pid, dir, err)
	}
	return nil
}

// ofKernel reports whether a process has no program.
func ofKernel(pid int) bool {
	_, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
	return errors.Is(err, fs.ErrNotExist)
}
