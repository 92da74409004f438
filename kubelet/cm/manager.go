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
)

// Config says where the groups lie and what limits they get.
type Config struct {
	// CgroupRoot is the group that holds kubepods, like "/berth-1a2b"; "/" or empty is the root of the hierarchy.
	CgroupRoot string
	// Driver is who makes the groups until SetDriver says otherwise; empty means DriverCgroupfs. It has to be the one
	// the runtime uses.
	Driver Driver
	// PodPidsLimit is the most processes of one Pod; 0 or less means no limit.
	PodPidsLimit int64
	// Resources are the options of the limits.
	Resources ResourceOptions
	// Hierarchies are the mounted hierarchies; nil means what the mount table says.
	Hierarchies []Hierarchy
}

// Deps are what a Manager needs of others.
type Deps struct {
	// Logger may be nil.
	Logger *slog.Logger
}

// Manager keeps the groups of this node's Pods. All its state lies in the kernel. It is safe for concurrent use,
// also for the same Pod.
type Manager struct {
	config Config
	root   cgroupName
	logger *slog.Logger

	mu          sync.Mutex // guards all below
	driver      Driver
	hierarchies []Hierarchy
	warned      map[string]bool // controllers that were said to be left out
}

// New makes a Manager; it looks at nothing yet. An unknown driver is an error.
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
	return &Manager{
		config: config, root: parseCgroupName(config.CgroupRoot), logger: logger, driver: driver, warned: map[string]bool{},
	}, nil
}

// SetDriver says who makes the groups from here on. To be called before EnsureRoot: groups of another driver have other
// names, and are not looked for.
func (m *Manager) SetDriver(driver Driver) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.driver = driver
}

// Driver is who makes the groups.
func (m *Manager) Driver() Driver {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.driver
}

// EnsureRoot makes the groups above all Pods. To be called before the first EnsurePod, and as often as one likes.
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

// EnforceAllocatable bounds what all Pods together may use: CPU time by shares, memory, and processes if they are among
// the resources. To be called after EnsureRoot. Memory that is in use already cannot be taken away, which is an error.
func (m *Manager) EnforceAllocatable(ctx context.Context, resources corev1.ResourceList) error {
	return m.ensure(ctx, m.qosCgroup(corev1.PodQOSGuaranteed), limitsFor(resources))
}

// UpdateBurstable gives the cgroup of all Burstable Pods the CPU shares of what they request together, in thousandths of
// a CPU.
func (m *Manager) UpdateBurstable(ctx context.Context, milliCPU int64) error {
	return m.ensure(ctx, m.qosCgroup(corev1.PodQOSBurstable), Limits{CPUShares: Shares(milliCPU)})
}

// CgroupParent is what the runtime is told to make the Pod's sandbox and containers in.
func (m *Manager) CgroupParent(pod *corev1.Pod) string {
	return m.podCgroup(pod).path(m.Driver())
}

// EnsurePod makes the Pod's group with the limits its spec amounts to now, and returns its CgroupParent.
func (m *Manager) EnsurePod(ctx context.Context, pod *corev1.Pod) (string, error) {
	name := m.podCgroup(pod)
	limits := PodLimits(pod, m.config.PodPidsLimit, m.config.Resources)
	if err := m.ensure(ctx, name, limits); err != nil {
		return "", err
	}
	return name.path(m.Driver()), nil
}

// UnlimitPod takes the limits of CPU time and memory off the Pod's group, for the moment in which those of its
// containers change: which of them grow, and which shrink first, is then of no matter. EnsurePod sets them again.
func (m *Manager) UnlimitPod(ctx context.Context, pod *corev1.Pod) error {
	limits := PodLimits(pod, m.config.PodPidsLimit, m.config.Resources)
	limits.CPUPeriod, limits.CPUQuota, limits.Memory = m.config.Resources.period(), -1, -1
	return m.ensure(ctx, m.podCgroup(pod), limits)
}

// ensure makes a group and all above it, and sets its limits.
func (m *Manager) ensure(ctx context.Context, name cgroupName, limits Limits) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if m.Driver() == DriverSystemd {
		return ensureSlice(name, limits, m.config.Resources.Unified)
	}
	hierarchies, err := m.mountedHierarchies()
	if err != nil {
		return err
	}
	for _, h := range hierarchies {
		if err := h.ensure(name, limits, m.skipController); err != nil {
			return fmt.Errorf("make control group %q: %w", name.cgroupfs(), err)
		}
	}
	return nil
}

// skipController says once that a controller does not do its work here, and whether the error is of that kind.
func (m *Manager) skipController(controller string, err error) bool {
	if !errors.Is(err, os.ErrPermission) && !errors.Is(err, os.ErrNotExist) && !isReadOnly(err) {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.warned[controller] {
		m.warned[controller] = true
		m.logger.Warn("control group limits of a controller are left out: it is missing or cannot be written",
			"controller", controller, "error", err)
	}
	return true
}

// mountedHierarchies returns the hierarchies, looking them up the first time.
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
				m.logger.Info("control group controller is not there, its limits are left out", "controller", c)
			}
		}
	}
	return m.hierarchies, nil
}

// Pods lists the Pods that have a group in any hierarchy, in order of their UIDs.
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
				return nil, fmt.Errorf("list control groups in %q: %w", parent, err)
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

// RemovePod kills whatever still runs in the Pod's group and removes it, with all that the runtime has left in it,
// from every hierarchy. It returns when that is done or ctx ends. A Pod without a group is no error.
func (m *Manager) RemovePod(ctx context.Context, uid types.UID) error {
	for class := range qosCgroups {
		name := m.qosCgroup(class).child(podPrefix + string(uid))
		if err := m.remove(ctx, name); err != nil {
			return fmt.Errorf("remove control group of pod %q: %w", uid, err)
		}
	}
	return nil
}

// RemoveRoot kills whatever runs in any Pod's group and removes all groups, the CgroupRoot with them unless
// something else lives there. To be called when the node is taken down.
func (m *Manager) RemoveRoot(ctx context.Context) error {
	if err := m.remove(ctx, m.root.child(kubepodsName)); err != nil {
		return fmt.Errorf("remove control group %q: %w", m.root.child(kubepodsName).cgroupfs(), err)
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
			m.logger.Info("control group is left, something else lives in it", "dir", dir, "error", err)
		}
	}
	return nil
}

// remove empties and removes a group in all hierarchies.
func (m *Manager) remove(ctx context.Context, name cgroupName) error {
	hierarchies, err := m.mountedHierarchies()
	if err != nil {
		return err
	}
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
