package cm

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	cgroupslib "github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs"
	"github.com/opencontainers/cgroups/fs2"
)

// limitControllers are the controllers whose limits are set here. The runtime handles the others.
var limitControllers = []string{"cpu", "memory", "pids", "hugetlb"}

// Hierarchy is one mounted cgroup hierarchy.
type Hierarchy struct {
	// Dir is its mount point, and Root the cgroup mounted there: not the root in a container that sees the machine's
	// hierarchy.
	Dir, Root string
	// Controllers are its controllers.
	Controllers []string
	// Unified says that it is cgroup v2.
	Unified bool
}

// FindHierarchies reads the mount table. On a hybrid machine it returns the hierarchies of v1, and the one of v2 without
// controllers.
func FindHierarchies() ([]Hierarchy, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	var found []Hierarchy
	seen := map[string]bool{}
	for _, mount := range mounts {
		h := Hierarchy{Dir: mount.Mountpoint, Root: mount.Root, Unified: mount.FSType == "cgroup2"}
		if h.Unified {
			content, err := os.ReadFile(filepath.Join(h.Dir, "cgroup.controllers"))
			if err != nil {
				return nil, fmt.Errorf("read the controllers of %q: %w", h.Dir, err)
			}
			h.Controllers = strings.Fields(string(content))
		} else {
			h.Controllers = strings.Split(mount.VFSOptions, ",")
		}
		// The same hierarchy may be mounted at several places.
		key := mount.FSType + mount.VFSOptions
		if !seen[key] {
			seen[key] = true
			found = append(found, h)
		}
	}
	if len(found) == 0 {
		return nil, errors.New("find cgroups: none are mounted (mount cgroup2 on /sys/fs/cgroup)")
	}
	return found, nil
}

// ensure creates a cgroup in this hierarchy and sets the limits of its controllers. skip decides whether an error of a
// controller is ignored.
func (h Hierarchy) ensure(name cgroupName, limits Limits, skip func(string, error) bool) error {
	if h.Unified {
		return h.ensureUnified(name, limits, skip)
	}
	dir := filepath.Join(h.Dir, name.cgroupfs())
	for _, controller := range limitControllers {
		if !slices.Contains(h.Controllers, controller) {
			continue
		}
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			err = set(dir, controller, limits.only(controller), false)
		}
		if err != nil && !skip(controller, err) {
			return fmt.Errorf("set %s limits: %w", controller, err)
		}
	}
	return nil
}

var v1Setters = map[string]func(string, *cgroupslib.Resources) error{
	"cpu":     (&fs.CpuGroup{}).Set,
	"memory":  (&fs.MemoryGroup{}).Set,
	"pids":    (&fs.PidsGroup{}).Set,
	"hugetlb": (&fs.HugetlbGroup{}).Set,
}

// ensureUnified creates the directories from the top down and enables the available controllers for each.
func (h Hierarchy) ensureUnified(name cgroupName, limits Limits, skip func(string, error) bool) error {
	if len(h.Controllers) == 0 {
		return nil // v2 without controllers on a hybrid machine; the runtime creates what it needs there
	}
	dir := h.Dir
	controllers := domainFirst(h.Controllers)
	for _, element := range name {
		for _, controller := range controllers {
			err := h.enableForChildren(dir, controller)
			if err != nil && slices.Contains(limitControllers, controller) && !skip(controller, err) {
				return fmt.Errorf("enable controller %s below %q: %w", controller, dir, err)
			}
		}
		dir = filepath.Join(dir, element)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	content, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, controller := range limitControllers {
		if !slices.Contains(strings.Fields(string(content)), controller) {
			continue
		}
		if err := set(dir, controller, limits.only(controller), true); err != nil && !skip(controller, err) {
			return fmt.Errorf("set %s limits: %w", controller, err)
		}
	}
	return nil
}

// set sets the limits of one controller in the cgroup at the directory.
func set(dir, controller string, limits Limits, unified bool) error {
	resources := limits.resources(unified)
	if !unified {
		return v1Setters[controller](dir, resources)
	}
	group, err := fs2.NewManager(&cgroupslib.Cgroup{Resources: resources}, dir)
	if err != nil {
		return err
	}
	return group.Set(resources)
}

// threadedControllers are those that the kernel can apply to threads. It enables them below a cgroup that has processes, which
// then takes part in the distribution as a whole and has no use for other controllers.
var threadedControllers = []string{"cpu", "cpuset", "perf_event", "pids"}

// domainFirst returns the controllers with those of threads last: the others show whether a cgroup has processes.
func domainFirst(controllers []string) []string {
	sorted := slices.Clone(controllers)
	slices.SortStableFunc(sorted, func(a, b string) int {
		return cmp.Compare(slices.Index(threadedControllers, a), slices.Index(threadedControllers, b))
	})
	return sorted
}

// enable enables the controller for the cgroups below dir.
func enable(dir, controller string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	enabled, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if slices.Contains(strings.Fields(string(enabled)), controller) {
		return nil
	}
	return os.WriteFile(file, []byte("+"+controller), 0o644)
}

// only returns the limits of one controller.
func (l Limits) only(controller string) Limits {
	switch controller {
	case "cpu":
		return Limits{CPUShares: l.CPUShares, CPUQuota: l.CPUQuota, CPUPeriod: l.CPUPeriod}
	case "memory":
		return Limits{Memory: l.Memory, MemoryMin: l.MemoryMin, MemoryLow: l.MemoryLow}
	case "pids":
		return Limits{Pids: l.Pids}
	case "hugetlb":
		return Limits{Hugepages: l.Hugepages}
	default:
		return Limits{}
	}
}

// resources converts the limits for the library. Cgroup v2 weighs CPU on another scale than shares.
func (l Limits) resources(unified bool) *cgroupslib.Resources {
	r := &cgroupslib.Resources{SkipDevices: true, SkipFreezeOnSet: true, Memory: l.Memory}
	if unified {
		r.CpuWeight = cpuWeight(l.CPUShares)
	} else {
		r.CpuShares = uint64(l.CPUShares)
	}
	if l.CPUQuota != 0 {
		r.CpuQuota, r.CpuPeriod = l.CPUQuota, uint64(l.CPUPeriod)
	}
	if l.Pids != 0 {
		r.PidsLimit = &l.Pids
	}
	for key, value := range map[string]*int64{MemoryMin: l.MemoryMin, MemoryLow: l.MemoryLow} {
		if !unified || value == nil {
			continue
		}
		if r.Unified == nil {
			r.Unified = map[string]string{}
		}
		r.Unified[key] = strconv.FormatInt(*value, 10)
	}
	for size, limit := range l.Hugepages {
		r.HugetlbLimit = append(r.HugetlbLimit, &cgroupslib.HugepageLimit{Pagesize: size, Limit: limit})
	}
	return r
}

func isReadOnly(err error) bool {
	return errors.Is(err, syscall.EROFS)
}
