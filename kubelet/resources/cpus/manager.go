package cpus

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"

	"k8s.io/utils/cpuset"

	"github.com/berth-dev/berth/kubelet/resources/hints"
	"github.com/berth-dev/berth/kubelet/resources/machine"
	"github.com/berth-dev/berth/kubelet/resources/metrics"
)

// Names of the policies, as in the configuration and in the state file.
const (
	policyNone   = "none"
	policyStatic = "static"
)

// Deps holds what a Manager needs.
type Deps struct {
	Topology *machine.Topology
	Metrics  *metrics.Metrics
	// Logger may be nil.
	Logger *slog.Logger
}

// Config holds the values of a Manager.
type Config struct {
	// Static gives containers of Guaranteed Pods that request whole CPUs CPUs of their own. Without it no container has any.
	Static  bool
	Options Options
	// Reserved are the CPUs that no container has for itself. If it is empty they are ReservedCount CPUs of the lowest cores.
	Reserved      cpuset.CPUSet
	ReservedCount int
	// Dir is the directory of the state file.
	Dir string
}

// Manager is the CPU manager. Admission calls Begin, then Hints and Allocate for each container, then Commit or Rollback, and
// Release between two of these, always one after the other. All other methods are safe for concurrent use.
type Manager struct {
	topology *machine.Topology
	config   Config
	policy   string
	logger   *slog.Logger
	// reserved are the reserved CPUs, and reservedCores all CPUs of their cores.
	reserved, reservedCores cpuset.CPUSet
	metrics                 *metrics.Metrics

	mu    sync.RWMutex // guards state
	state state
	// draft is the state after the admission under way. reusable are CPUs of the Pod's init containers that the next ones may
	// have, too.
	draft    state
	reusable cpuset.CPUSet
}

// New returns a Manager. Open comes before all other methods.
func New(deps Deps, config Config) (*Manager, error) {
	switch {
	case deps.Topology == nil:
		return nil, errors.New("cpus: Deps.Topology is required")
	case deps.Metrics == nil:
		return nil, errors.New("cpus: Deps.Metrics is required")
	}
	m := &Manager{topology: deps.Topology, config: config, policy: policyNone, logger: cmp.Or(deps.Logger, slog.New(slog.DiscardHandler)), metrics: deps.Metrics}
	if config.Static {
		m.policy = policyStatic
		return m, m.reserve()
	}
	return m, nil
}

// Open reads the decisions of the state file, which it creates if there is none. It fails if the file is of another policy, or
// does not match the machine and the reserved CPUs: then running containers have CPUs that cannot be kept. A damaged one is set aside. found is false if there
// is none then.
func (m *Manager) Open() (found bool, err error) {
	read, found, err := m.readState()
	if err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state = read
	if m.config.Static {
		if err := m.checkState(); err != nil {
			return false, stateFile(m.config.Dir).Mismatch(err)
		}
	}
	if m.config.Static {
		m.metrics.ShowCPUs()
	}
	m.count()
	if found && m.state.shared.Equals(read.shared) {
		return true, nil
	}
	return found, writeState(m.config.Dir, m.policy, m.state)
}

// reserve chooses the reserved CPUs.
func (m *Manager) reserve() error {
	m.reserved = m.config.Reserved
	if m.reserved.IsEmpty() {
		count := m.config.ReservedCount
		if count <= 0 {
			return errors.New("CPU manager policy static: reserve CPUs for the node's daemons: set the cpu of kubeReserved or " +
				"systemReserved above 0, or reservedSystemCPUs")
		}
		var err error
		if m.reserved, err = take(m.topology, m.config.Options, m.topology.All(), count); err != nil {
			return fmt.Errorf("CPU manager policy static: reserve %d CPUs: %w", count, err)
		}
	}
	if missing := m.reserved.Difference(m.topology.All()); !missing.IsEmpty() {
		return fmt.Errorf("CPU manager policy static: reserve CPUs %s: the machine has no CPUs %s", m.reserved, missing)
	}
	m.reservedCores = m.topology.CoresOf(m.reserved)
	return nil
}

// checkState compares the state with the machine and sets the shared pool of an empty one.
func (m *Manager) checkState() error {
	s, all := &m.state, m.topology.All()
	if m.config.Options.StrictReservation {
		all = all.Difference(m.reserved)
	}
	if s.shared.IsEmpty() {
		if len(s.given) == 0 {
			s.shared = all
			return nil
		}
		if !m.config.Options.StrictReservation { // else all that are not reserved may be given to containers
			return errors.New("it has no shared CPUs")
		}
	}
	switch shared := m.reserved.Intersection(s.shared); {
	case m.config.Options.StrictReservation && !shared.IsEmpty():
		return fmt.Errorf("CPUs %s, which are strictly reserved, are among the shared ones (%s)", shared, s.shared)
	case !m.config.Options.StrictReservation && !shared.Equals(m.reserved):
		return fmt.Errorf("the reserved CPUs %s are not all among the shared ones (%s)", m.reserved, s.shared)
	}
	for uid, containers := range s.given {
		for name, cpus := range containers {
			if both := s.shared.Intersection(cpus); !both.IsEmpty() {
				return fmt.Errorf("CPUs %s of container %q of Pod %s are among the shared ones (%s)", both, name, uid, s.shared)
			}
		}
	}
	if known := s.shared.Union(s.exclusive()); !known.Equals(all) {
		return fmt.Errorf("the machine has CPUs %s, the state has %s", all, known)
	}
	return nil
}

// Begin starts an admission.
func (m *Manager) Begin() { m.draft, m.reusable = m.state.clone(), cpuset.New() }

// Rollback forgets what was allocated since Begin.
func (m *Manager) Rollback() { m.draft = state{} }

// Commit stores what was allocated since Begin, first on the disk. It reports whether the shared pool has changed. After an
// error the decisions of before hold.
func (m *Manager) Commit() (poolChanged bool, err error) {
	draft := m.draft
	m.draft = state{}
	return m.store(draft)
}

func (m *Manager) store(next state) (poolChanged bool, err error) {
	if sameState(m.state, next) {
		return false, nil
	}
	if err := writeState(m.config.Dir, m.policy, next); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	poolChanged = !m.state.shared.Equals(next.shared)
	m.state = next
	m.count()
	return poolChanged, nil
}

// count sets the gauges. The caller holds mu.
func (m *Manager) count() {
	if !m.config.Static {
		return
	}
	exclusive := m.state.exclusive()
	m.metrics.SharedPool.Set(float64(m.state.shared.Difference(m.reserved).Size() * 1000))
	m.metrics.ExclusiveCPUs.Set(float64(exclusive.Size()))
	for _, node := range m.topology.CPUNodes().List() {
		m.metrics.CPUsByNode.WithLabelValues(strconv.Itoa(node)).Set(float64(exclusive.Intersection(m.topology.InNodes(node)).Size()))
	}
}

// Release returns the CPUs of a Pod's containers to the shared pool. It reports whether that has changed.
func (m *Manager) Release(uid string) (poolChanged bool, err error) {
	containers := m.state.given[uid]
	if containers == nil {
		return false, nil
	}
	next := m.state.clone()
	delete(next.given, uid)
	for _, cpus := range containers {
		next.shared = next.shared.Union(cpus)
	}
	return m.store(next)
}

// Pods returns the UIDs of the Pods that have CPUs of their own.
func (m *Manager) Pods() []string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	uids := make([]string, 0, len(m.state.given))
	for uid := range m.state.given {
		uids = append(uids, uid)
	}
	return uids
}

// Of returns the CPUs that a container may use, and whether they are its own. They are empty if it may use all. A container without
// CPUs of its own gets the reserved ones if no others are left, which is possible if these are strictly reserved.
func (m *Manager) Of(uid, container string) (cpus cpuset.CPUSet, exclusive bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if cpus, ok := m.state.given[uid][container]; ok {
		return cpus, true
	}
	if m.state.shared.IsEmpty() {
		return m.reserved, false
	}
	return m.state.shared, false
}

// HasExclusive reports whether a container of the Pod has CPUs of its own.
func (m *Manager) HasExclusive(uid string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return len(m.state.given[uid]) > 0
}

// Shared returns the CPUs of containers that have none of their own; none with the policy none.
func (m *Manager) Shared() cpuset.CPUSet {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.shared
}

// Allocatable returns the CPUs that containers may get for themselves; none with the policy none.
func (m *Manager) Allocatable() cpuset.CPUSet {
	if !m.config.Static {
		return cpuset.New()
	}
	return m.topology.All().Difference(m.reserved)
}

// Static reports whether containers get CPUs of their own.
func (m *Manager) Static() bool { return m.config.Static }

func sameState(a, b state) bool {
	if !a.shared.Equals(b.shared) || len(a.given) != len(b.given) {
		return false
	}
	for uid, containers := range a.given {
		if len(containers) != len(b.given[uid]) {
			return false
		}
		for name, cpus := range containers {
			other, ok := b.given[uid][name]
			if !ok || !cpus.Equals(other) {
				return false
			}
		}
	}
	return true
}

// inNodes returns those of the CPUs that are in the NUMA nodes.
func (m *Manager) inNodes(cpus cpuset.CPUSet, nodes hints.Mask) cpuset.CPUSet {
	return cpus.Intersection(m.topology.InNodes(nodes.Nodes()...))
}
