package memory

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"

	"github.com/berth-dev/berth/kubelet/resources/hints"
	"github.com/berth-dev/berth/kubelet/resources/machine"
	"github.com/berth-dev/berth/kubelet/resources/metrics"
)

// Names of the policies, as in the configuration and in the state file.
const (
	policyNone   = "None"
	policyStatic = "Static"
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
	// Static gives containers of Guaranteed Pods memory of chosen NUMA nodes. Without it all get memory of any.
	Static   bool
	Reserved Reservation
	// Dir is the directory of the state file.
	Dir string
}

// Manager is the memory manager. Admission calls Begin, then Hints and Allocate for each container, then Commit or Rollback,
// and Release between two of these, always one after the other. All other methods are safe for concurrent use.
type Manager struct {
	topology *machine.Topology
	config   Config
	policy   string
	logger   *slog.Logger
	metrics  *metrics.Metrics

	mu    sync.RWMutex // guards state
	state state
	// draft is the state after the admission under way. reusable is memory of the Pod's init containers that the next ones may
	// have, too, by the nodes that it is on.
	draft    state
	reusable map[hints.Mask]Amounts
}

// New returns a Manager. Open comes before all other methods.
func New(deps Deps, config Config) (*Manager, error) {
	switch {
	case deps.Topology == nil:
		return nil, errors.New("memory: Deps.Topology is required")
	case deps.Metrics == nil:
		return nil, errors.New("memory: Deps.Metrics is required")
	}
	m := &Manager{config: config, policy: policyNone, logger: cmp.Or(deps.Logger, slog.New(slog.DiscardHandler)), metrics: deps.Metrics, topology: deps.Topology}
	if config.Static {
		m.policy = policyStatic
	}
	return m, nil
}

// Open reads the decisions of the state file, which it creates if there is none. It fails if the file is of another policy, or if
// the machine does not have what the file says containers have. A damaged one is set aside. found is false if there is none then.
func (m *Manager) Open() (found bool, err error) {
	read, found, err := m.readState()
	if err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state = read
	changed := !found
	if m.config.Static {
		set, err := m.checkState(newNodes(m.topology, m.config.Reserved))
		if err != nil {
			return false, stateFile(m.config.Dir).Mismatch(err)
		}
		changed = changed || set
	}
	if !changed {
		return found, nil
	}
	return found, writeState(m.config.Dir, m.policy, m.state)
}

// checkState counts what containers have on the nodes of the machine as it is now, and sets those of an empty state. A machine's memory
// changes: it is added to a virtual machine that runs, and another kernel or other huge pages leave more or less of it. Upstream
// does not start then. Here it is enough that the machine still has what containers have.
func (m *Manager) checkState(fresh nodeMap) (changed bool, err error) {
	if len(m.state.nodes) == 0 && len(m.state.given) > 0 {
		return false, errors.New("it has containers, and no NUMA nodes")
	}
	what := m.state.nodes.differs(fresh)
	for _, o := range m.state.given.owned() {
		if err := fresh.check(o.Block); err != nil {
			return false, fmt.Errorf("memory of container %q of Pod %s: %w", o.container, o.uid, err)
		}
		if lacking := fresh.take(o.Block, 0); lacking > 0 && what != "" {
			return false, fmt.Errorf("%s differs from that of the machine and its configuration, and container %q of Pod %s has %s of NUMA nodes %v, %d bytes more than is left there",
				what, o.container, o.uid, o.Type, o.NUMAAffinity, lacking)
		}
	}
	switch {
	case len(m.state.nodes) == 0:
	case what != "":
		m.logger.Info("the memory that containers can have has changed since the kubelet ran last; what they have is kept", "changed", what)
	case m.state.nodes.givesAs(fresh):
		return false, nil
	}
	// Nothing else may have changed: where a container has had memory of a node that gives memory together with others, too, as its CPUs
	// were there, the groups are those of the last one that got any. Upstream does not start with such a state, though it makes it itself.
	m.state.nodes = fresh
	return true, nil
}

// Begin starts an admission.
func (m *Manager) Begin() { m.draft, m.reusable = m.state.clone(), map[hints.Mask]Amounts{} }

// Rollback forgets what was allocated since Begin.
func (m *Manager) Rollback() { m.draft = state{} }

// Commit stores what was allocated since Begin, first on the disk. After an error the decisions of before hold.
func (m *Manager) Commit() error {
	draft := m.draft
	m.draft = state{}
	return m.store(draft)
}

func (m *Manager) store(next state) error {
	if len(m.state.given)+len(next.given) == 0 || reflect.DeepEqual(m.state.given, next.given) {
		return nil
	}
	if err := writeState(m.config.Dir, m.policy, next); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state = next
	return nil
}

// Release takes back the memory of a Pod's containers.
func (m *Manager) Release(uid string) error {
	if m.state.given[uid] == nil {
		return nil
	}
	next := m.state.clone()
	for _, blocks := range next.given[uid] {
		for _, b := range blocks {
			next.nodes.give(b)
		}
	}
	delete(next.given, uid)
	return m.store(next)
}

// Pods returns the UIDs of the Pods that have memory of chosen nodes.
func (m *Manager) Pods() []string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	uids := make([]string, 0, len(m.state.given))
	for uid := range m.state.given {
		uids = append(uids, uid)
	}
	return uids
}

// Of returns the memory of a container, nil if it may use all nodes.
func (m *Manager) Of(uid, container string) []Block {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.Clone(m.state.given[uid][container])
}

// Nodes returns the NUMA nodes whose memory a container may use, empty for all.
func (m *Manager) Nodes(uid, container string) hints.Mask {
	var mask hints.Mask
	for _, b := range m.Of(uid, container) {
		mask |= hints.MaskOf(b.NUMAAffinity...)
	}
	return mask
}

// Allocatable returns how much memory of each kind and node containers may have, sorted; nil with the policy None.
func (m *Manager) Allocatable() []Block {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var blocks []Block
	for id, node := range m.state.nodes {
		for kind, t := range node.MemoryMap {
			if t.Allocatable > 0 {
				blocks = append(blocks, Block{NUMAAffinity: []int{id}, Type: kind, Size: t.Allocatable})
			}
		}
	}
	sortBlocks(blocks)
	return blocks
}

// Static reports whether containers get memory of chosen nodes.
func (m *Manager) Static() bool { return m.config.Static }
