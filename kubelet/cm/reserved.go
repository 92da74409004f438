package cm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// limitsFor returns the limits for amounts of CPU, memory and processes. What is absent or zero sets nothing.
func limitsFor(resources corev1.ResourceList) Limits {
	limits := Limits{Memory: resources.Memory().Value()}
	if cpu := resources.Cpu(); !cpu.IsZero() {
		limits.CPUShares = Shares(cpu.MilliValue())
	}
	if pids, ok := resources["pid"]; ok {
		limits.Pids = pids.Value()
	}
	return limits
}

// EnforceReserved limits an existing cgroup, like that of the system's own programs, to the amounts: CPU time by shares,
// memory, and processes. The cgroup is a path below the hierarchies, such as "/system.slice", with any driver. It must
// exist, with each controller whose limit is set: a missing one is an error, and so is memory that is in use.
func (m *Manager) EnforceReserved(ctx context.Context, group string, amounts corev1.ResourceList) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	clean := path.Clean("/" + group)
	if clean == "/" {
		return fmt.Errorf("limit cgroup %q: name a cgroup below the root", group)
	}
	hierarchies, err := m.mountedHierarchies()
	if err != nil {
		return err
	}
	limits := limitsFor(amounts)
	for _, controller := range limits.controllers() {
		dir, unified, err := controllerDir(hierarchies, controller, clean)
		if err != nil {
			return err
		}
		if m.Driver() == DriverSystemd && strings.HasSuffix(clean, ".slice") {
			err = setSlice(path.Base(clean), limits.only(controller), unified)
		} else {
			err = set(dir, controller, limits.only(controller), unified)
		}
		if err != nil {
			return fmt.Errorf("limit cgroup %q: set %s limits: %w", group, controller, err)
		}
	}
	return nil
}

// controllerDir returns the cgroup's directory in the hierarchy of the controller, which must exist.
func controllerDir(hierarchies []Hierarchy, controller, group string) (dir string, unified bool, err error) {
	for _, h := range hierarchies {
		if !slices.Contains(h.Controllers, controller) {
			continue
		}
		dir := filepath.Join(h.Dir, group)
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
			return "", false, fmt.Errorf("limit cgroup %q: %s not found: what starts these programs must create it",
				group, dir)
		} else if err != nil {
			return "", false, fmt.Errorf("limit cgroup %q: %w", group, err)
		}
		return dir, h.Unified, nil
	}
	return "", false, fmt.Errorf("limit cgroup %q: this machine has no controller %s", group, controller)
}

// controllers returns the controllers of the limits.
func (l Limits) controllers() []string {
	var needed []string
	for controller, wanted := range map[string]bool{
		"cpu": l.CPUShares != 0 || l.CPUQuota != 0, "memory": l.Memory != 0, "pids": l.Pids != 0,
		"hugetlb": len(l.Hugepages) > 0,
	} {
		if wanted {
			needed = append(needed, controller)
		}
	}
	slices.Sort(needed)
	return needed
}
