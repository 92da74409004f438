package cm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	cgroupslib "github.com/opencontainers/cgroups"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// Config are the values a Manager works with.
type Config struct {
	// CgroupRoot is the cgroup that contains kubepods, like "/berth-1a2b"; "/" or empty is the root of the hierarchy.
	CgroupRoot string
	// Driver creates the cgroups unless SetDriver sets another one; empty means DriverCgroupfs. It must be the
	// runtime's.
	Driver Driver
	// PodPidsLimit is the largest number of processes of one Pod; 0 or less means no limit.
	PodPidsLimit int64
	// Resources are the options of the limits.
	Resources ResourceOptions
	// Hierarchies are the mounted hierarchies; nil means those of the mount table.
	Hierarchies []Hierarchy
}

// Deps are what a Manager needs from others.
type Deps struct {
	// Durations, if set, measures the operations.
	Durations *Durations
	// Logger may be nil.
	Logger *slog.Logger
}

// Manager manages the cgroups of this node's Pods. All its state is in the kernel. It is safe for concurrent use, also
// for the same Pod.
type Manager struct {
	config    Config
	root      cgroupName
	durations *Durations
	logger    *slog.Logger

	mu          sync.Mutex // guards all below
	driver      Driver
	hierarchies []Hierarchy
	warned      map[string]bool // controllers that a warning was logged for
}

// New returns a Manager; it accesses no cgroup yet. An unknown driver is an error.
func New(deps Deps, config Config) (*Manager, error) {
	if config.Driver == "" {
		config.Driver = DriverCgroupfs
	}
	driver, err := ParseDriver(string(config.Driver))
	if err != nil {
		return nil, err
	}
	if trimmed := "/" + strings.Trim(config.CgroupRoot, "/"); path.Clean(trimmed) != trimmed {
		return nil, fmt.Errorf("read cgroupRoot %q: not a clean path", config.CgroupRoot)
	}
	logger := deps.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	durations := deps.Durations
	if durations == nil {
		durations = NewDurations(clock.RealClock{})
	}
	return &Manager{
		config: config, root: parseCgroupName(config.CgroupRoot), durations: durations, logger: logger, driver: driver,
		warned: map[string]bool{},
	}, nil
}

// SetDriver sets the driver. It is called before EnsureRoot: cgroups of another driver have other names and are not
// found.
func (m *Manager) SetDriver(driver Driver) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.driver = driver
}

// Driver returns the driver.
func (m *Manager) Driver() Driver {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.driver
}

// EnsureRoot creates the cgroups above all Pods. It is called before the first EnsurePod, and may be called again.
func (m *Manager) EnsureRoot(ctx context.Context) error {
	for _, class := range []corev1.PodQOSClass{
		corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort,
	} {
		limits := Limits{}
		if class == corev1.PodQOSBestEffort {
			limits.CPUShares = minShares
		}
		if err := m.ensure(ctx, m.qosCgroup(class), limits); err != nil {
			return err
		}
	}
	return nil
}

// EnforceAllocatable limits all Pods together: CPU time by shares, memory, and processes if they are among the
// resources. It is called after EnsureRoot. Memory in use cannot be taken away, which is an error.
func (m *Manager) EnforceAllocatable(ctx context.Context, resources corev1.ResourceList) error {
	return m.ensure(ctx, m.qosCgroup(corev1.PodQOSGuaranteed), limitsFor(resources))
}

// UpdateClasses sets the CPU shares of the cgroup of all Burstable Pods for the sum of their requests, and with memory QoS
// how much memory the cgroups of the classes reserve.
func (m *Manager) UpdateClasses(ctx context.Context, requests Requests) error {
	all, burstable := classLimits(requests, m.config.Resources)
	if all.MemoryMin != nil {
		if err := m.ensure(ctx, m.qosCgroup(corev1.PodQOSGuaranteed), all); err != nil {
			return err
		}
	}
	return m.ensure(ctx, m.qosCgroup(corev1.PodQOSBurstable), burstable)
}

// CgroupParent returns the cgroup in which the runtime creates the Pod's sandbox and containers.
func (m *Manager) CgroupParent(pod *corev1.Pod) string {
	return m.podCgroup(pod).path(m.Driver())
}

// EnsurePod creates the Pod's cgroup, sets the limits of its spec, and returns its CgroupParent.
func (m *Manager) EnsurePod(ctx context.Context, pod *corev1.Pod) (string, error) {
	name := m.podCgroup(pod)
	limits := PodLimits(pod, m.config.PodPidsLimit, m.config.Resources)
	if err := m.ensure(ctx, name, limits); err != nil {
		return "", err
	}
	return name.path(m.Driver()), nil
}

// UnlimitPod removes the limits of CPU time and memory of the Pod's cgroup while those of its containers change, so that
// the order of the changes does not matter. EnsurePod sets them again.
func (m *Manager) UnlimitPod(ctx context.Context, pod *corev1.Pod) error {
	limits := PodLimits(pod, m.config.PodPidsLimit, m.config.Resources)
	limits.CPUPeriod, limits.CPUQuota, limits.Memory = m.config.Resources.period(), -1, -1
	return m.ensure(ctx, m.podCgroup(pod), limits)
}

// ensure creates a cgroup and all above it, and sets its limits.
func (m *Manager) ensure(ctx context.Context, name cgroupName, limits Limits) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	driver := m.Driver()
	hierarchies, err := m.mountedHierarchies()
	if err != nil {
		return err
	}
	defer m.durations.start(ensureOperation(hierarchies, name.path(driver)))()
	if driver == DriverSystemd {
		return ensureSlice(name, limits, m.config.Resources.Unified)
	}
	for _, h := range hierarchies {
		if err := h.ensure(name, limits, m.skipController); err != nil {
			return fmt.Errorf("create cgroup %q: %w", name.cgroupfs(), err)
		}
	}
	return nil
}

// skipController reports whether the error says that a controller is missing or cannot be written, and logs that once.
func (m *Manager) skipController(controller string, err error) bool {
	if !errors.Is(err, os.ErrPermission) && !errors.Is(err, os.ErrNotExist) && !isReadOnly(err) {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.warned[controller] {
		m.warned[controller] = true
		m.logger.Warn("skipping the cgroup limits of a controller: it is missing or cannot be written",
			"controller", controller, "error", err)
	}
	return true
}

// mountedHierarchies returns the hierarchies, and finds them the first time.
func (m *Manager) mountedHierarchies() ([]Hierarchy, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hierarchies == nil {
		m.hierarchies = m.config.Hierarchies
		if m.hierarchies == nil {
			found, err := FindHierarchies()
			if err != nil {
				return nil, err
			}
			m.hierarchies = found
		}
		have := map[string]bool{}
		for _, h := range m.hierarchies {
			for _, c := range h.Controllers {
				have[c] = true
			}
		}
		for _, c := range limitControllers {
			if !have[c] {
				m.warned[c] = true
				m.logger.Info("cgroup controller not found; skipping its limits", "controller", c)
			}
		}
	}
	return m.hierarchies, nil
}

// Pods lists the Pods that have a cgroup in any hierarchy, in order of their UIDs.
func (m *Manager) Pods() ([]types.UID, error) {
	hierarchies, err := m.mountedHierarchies()
	if err != nil {
		return nil, err
	}
	uids := map[types.UID]bool{}
	for class := range qosCgroups {
		parent := m.qosCgroup(class).path(m.Driver())
		for _, h := range hierarchies {
			entries, err := os.ReadDir(filepath.Join(h.Dir, parent))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, fmt.Errorf("list cgroups in %q: %w", parent, err)
			}
			for _, entry := range entries {
				if uid, ok := m.podUID(entry.Name()); ok && entry.IsDir() {
					uids[uid] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(uids)), nil
}

// RemovePod kills all processes in the Pod's cgroup and removes it, with all that the runtime has left in it, from every
// hierarchy. It returns when that is done or ctx ends. A Pod without a cgroup is not an error.
func (m *Manager) RemovePod(ctx context.Context, uid types.UID) error {
	for class := range qosCgroups {
		name := m.qosCgroup(class).child(podPrefix + string(uid))
		if err := m.remove(ctx, name); err != nil {
			return fmt.Errorf("remove cgroup of Pod %q: %w", uid, err)
		}
	}
	return nil
}

// RemoveContainer kills all processes in the cgroup of a container of the Pod, or of its sandbox, and removes it, for one that the
// runtime has removed or lost: a runtime that was killed while it created a container may know nothing of its cgroup. systemd removes
// cgroups of its own when they are empty. A container without a cgroup is not an error.
func (m *Manager) RemoveContainer(ctx context.Context, pod *corev1.Pod, id string) error {
	if m.Driver() != DriverSystemd {
		if err := m.remove(ctx, m.podCgroup(pod).child(id)); err != nil {
			return fmt.Errorf("remove cgroup of container %s: %w", id, err)
		}
		return nil
	}
	hierarchies, err := m.mountedHierarchies()
	if err != nil {
		return err
	}
	var dirs []string
	for _, h := range hierarchies {
		for _, name := range ContainerCgroups(id) {
			if dir := filepath.Join(h.Dir, m.CgroupParent(pod), name); cgroupslib.PathExists(dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	if err := killAll(ctx, dirs); err != nil {
		return fmt.Errorf("end the processes of container %s: %w", id, err)
	}
	return nil
}

// RemoveRoot kills all processes in any Pod's cgroup and removes all cgroups, with CgroupRoot unless it has other
// children. It is called when the node is removed.
func (m *Manager) RemoveRoot(ctx context.Context) error {
	if err := m.remove(ctx, m.root.child(kubepodsName)); err != nil {
		return fmt.Errorf("remove cgroup %q: %w", m.root.child(kubepodsName).cgroupfs(), err)
	}
	if len(m.root) == 0 || m.Driver() == DriverSystemd {
		return nil
	}
	hierarchies, err := m.mountedHierarchies()
	if err != nil {
		return err
	}
	for _, h := range hierarchies {
		dir := filepath.Join(h.Dir, m.root.cgroupfs())
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			m.logger.Info("cgroup not removed: it still has processes", "dir", dir, "error", err)
		}
	}
	return nil
}

// maxRemovals bounds how often a cgroup is removed that is made again.
const maxRemovals = 64

// remove empties and removes a cgroup in all hierarchies. It lists them again until there is none: a runtime whose call was interrupted may still
// be making a container, and adds the cgroup in one hierarchy after the other.
func (m *Manager) remove(ctx context.Context, name cgroupName) error {
	hierarchies, err := m.mountedHierarchies()
	if err != nil {
		return err
	}
	for range maxRemovals {
		var dirs []string
		for _, h := range hierarchies {
			dir := filepath.Join(h.Dir, name.path(m.Driver()))
			if cgroupslib.PathExists(dir) {
				dirs = append(dirs, dir)
			}
		}
		if len(dirs) == 0 {
			return nil
		}
		if err := m.removeDirs(ctx, name, dirs); err != nil {
			return err
		}
	}
	return fmt.Errorf("remove cgroup %q: it is made again and again", name.path(m.Driver()))
}

// removeDirs kills all processes in a cgroup and removes its directories.
func (m *Manager) removeDirs(ctx context.Context, name cgroupName, dirs []string) error {
	defer m.durations.start(operationDestroy)()
	if err := killAll(ctx, dirs); err != nil {
		return err
	}
	if m.Driver() == DriverSystemd {
		if err := removeSlice(name); err != nil {
			return err
		}
	}
	for _, dir := range dirs {
		if err := cgroupslib.RemovePath(dir); err != nil {
			return fmt.Errorf("remove directory: %w", err)
		}
	}
	return nil
}
