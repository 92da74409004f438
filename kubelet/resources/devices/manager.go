package devices

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/statefile"
	"github.com/berth-dev/berth/kubelet/resources/delay"
	"github.com/berth-dev/berth/kubelet/resources/metrics"
)

// stopGracePeriod is how long a resource without a plugin stays in the Node's capacity: the plugin may be restarting.
const stopGracePeriod = 5 * time.Minute

// Deps holds what a Manager needs. Logger and Clock may be nil.
type Deps struct {
	// NUMANodes are the NUMA nodes of the machine, sorted.
	NUMANodes []int
	Metrics   *metrics.Metrics
	// OnCapacityChanged is called when the node has more or fewer devices, or other healthy ones. It must not block.
	OnCapacityChanged func()
	// OnHealthChanged is called for each Pod of whose devices one has become healthy or unhealthy. It must not block.
	OnHealthChanged func(uid types.UID)
	Clock           clock.Clock
	Logger          *slog.Logger
}

func (d *Deps) complete() error {
	for _, dep := range []struct {
		name    string
		missing bool
	}{
		{"Metrics", d.Metrics == nil}, {"OnCapacityChanged", d.OnCapacityChanged == nil}, {"OnHealthChanged", d.OnHealthChanged == nil},
	} {
		if dep.missing {
			return errors.New("devices: Deps." + dep.name + " is required")
		}
	}
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// device is a device as its plugin reports it.
type device struct {
	healthy bool
	nodes   []int
}

// pool has the devices of one resource.
type pool struct {
	devices map[string]device
	// plugin is nil while none is connected.
	plugin *plugin
	// removal ends the pool some time after its plugin is gone.
	removal *delay.Call
}

// healthyIDs returns the devices that may be given to containers.
func (p *pool) healthyIDs() []string {
	var ids []string
	for id, d := range p.devices {
		if d.healthy && p.plugin != nil {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Manager is the device manager. Admission calls Begin, then Hints and Allocate for each container, and Rollback if it fails,
// always one after the other. All other methods are safe for concurrent use. It has many methods because admission, plugins,
// containers and statuses all concern the same devices.
type Manager struct {
	deps Deps
	dir  string
	// first says that no earlier process has made dir.
	first bool

	mu    sync.Mutex // guards all below
	pools map[string]*pool
	// removed are resources that a plugin has provided in this process and that are gone for good.
	removed map[string]bool
	// preparing are resources whose last plugin in this process wants to prepare devices for each start of a container.
	preparing map[string]bool
	given     grants
	// earlier are the Pods that have devices from an earlier process, and that no sandbox was created for in this one.
	earlier map[string]bool
	unknown unknownPods
	// ahead are the allocations that began before the Pods' containers were started, by the Pod's UID.
	ahead map[string]*ahead
	// added are the reservations of the admission under way. reusable are devices of the Pod's init containers, by resource.
	added    []reservation
	reusable map[string][]string
	// running is the context of connections to plugins, nil before Start; connections counts them and the allocations that are ahead, and
	// removing the removals that write.
	running               context.Context //nolint:containedctx // plugins connect through a server, whose calls end sooner
	connections, removing sync.WaitGroup
	// serving is why no plugin can register; nil if it can.
	serving error

	writing sync.Mutex // serialises writes of the file
}

type reservation struct{ uid, container, resource string }

// New returns a Manager for the kubelet's directory. Open comes before all other methods.
func New(deps Deps, root string) (*Manager, error) {
	if err := deps.complete(); err != nil {
		return nil, err
	}
	dir := filepath.Join(root, Dir)
	_, err := os.Stat(dir)
	return &Manager{
		deps: deps, dir: dir, first: errors.Is(err, fs.ErrNotExist), pools: map[string]*pool{}, removed: map[string]bool{}, preparing: map[string]bool{},
		given: grants{}, earlier: map[string]bool{}, ahead: map[string]*ahead{},
	}, nil
}

// First reports whether this is the first kubelet of the machine, as after it was installed anew.
func (m *Manager) First() bool { return m.first }

func (m *Manager) stateFile() string { return filepath.Join(m.dir, StateFile) }

// Open reads the state file. A damaged one is set aside; what that means is with [Manager.Readmit].
func (m *Manager) Open() error {
	given, registered, err := readState(m.stateFile())
	if err != nil {
		statefile.SetAside(m.deps.Logger, m.stateFile(), err, "no container gets devices of which Pods of this node have some, until these have ended")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.unknown = unknownPods{}
	}
	m.given = given
	for uid := range given {
		m.earlier[uid] = true
	}
	for _, name := range registered {
		m.pools[name] = &pool{devices: map[string]device{}}
		m.scheduleRemoval(name)
	}
	return nil
}

// save writes the state file.
func (m *Manager) save() error {
	m.writing.Lock()
	defer m.writing.Unlock()
	given, registered, written := m.snapshot()
	if err := writeState(m.stateFile(), given, registered); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, g := range written {
		g.stored = true
	}
	return nil
}

// snapshot returns what the state file has to have, and the grants with a response that are among it.
func (m *Manager) snapshot() (given grants, registered map[string][]string, written []*grant) {
	m.mu.Lock()
	defer m.mu.Unlock()
	given, registered = grants{}, map[string][]string{}
	for uid, containers := range m.given {
		for container, resources := range containers {
			for name, g := range resources {
				copied := *g
				given.set(uid, container, name, &copied)
				if g.response != nil {
					written = append(written, g)
				}
			}
		}
	}
	for name, p := range m.pools {
		registered[name] = p.healthyIDs()
	}
	return given, registered, written
}

// saveLogged writes the state file after a change that no caller waits for.
func (m *Manager) saveLogged() {
	if err := m.save(); err != nil {
		m.deps.Logger.Warn("failed to store which devices are registered; the next change stores it", "error", err)
	}
}

// scheduleRemoval removes the resource from the Node's capacity unless a plugin registers it in time. The caller holds mu.
func (m *Manager) scheduleRemoval(name string) {
	p := m.pools[name]
	p.removal = delay.After(m.deps.Clock, stopGracePeriod, func() {
		m.mu.Lock()
		gone := m.pools[name] == p && p.plugin == nil
		if gone {
			delete(m.pools, name)
			m.removed[name] = true
			m.removing.Add(1)
		}
		m.mu.Unlock()
		if gone {
			defer m.removing.Done()
			m.deps.Logger.Info("device plugin is gone for good; removed its resource", "resource", name)
			m.saveLogged()
			m.deps.OnCapacityChanged()
		}
	})
}

// update takes the devices that a plugin reports. A plugin that another one has replaced is ignored.
func (m *Manager) update(name string, from *plugin, list []*pluginapi.Device) {
	if pods, ok := m.replace(name, from, list); ok {
		m.saveLogged()
		m.notify(pods)
	}
}

// replace replaces the devices of a resource, and returns the Pods that have one whose health differs; not ok if the plugin was replaced.
func (m *Manager) replace(name string, from *plugin, list []*pluginapi.Device) (pods []types.UID, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pools[name]
	if p == nil || p.plugin != from {
		return nil, false
	}
	before := p.devices
	p.devices = map[string]device{}
	for _, d := range list {
		found := device{healthy: d.Health == pluginapi.Healthy}
		for _, node := range d.GetTopology().GetNodes() {
			found.nodes = append(found.nodes, int(node.ID))
		}
		p.devices[d.ID] = found
	}
	return m.affected(name, before, p.devices), true
}

// affected returns the Pods that have a device whose health differs. The caller holds mu.
func (m *Manager) affected(name string, before, now map[string]device) []types.UID {
	var pods []types.UID
	for uid, containers := range m.given {
		changed := false
		for _, resources := range containers {
			if g := resources[name]; g != nil {
				changed = changed || slices.ContainsFunc(g.devices.ids(), func(id string) bool { return before[id].healthy != now[id].healthy })
			}
		}
		if changed {
			pods = append(pods, types.UID(uid))
		}
	}
	return pods
}

func (m *Manager) notify(pods []types.UID) {
	m.deps.OnCapacityChanged()
	for _, uid := range pods {
		m.deps.OnHealthChanged(uid)
	}
}

// Release takes back the devices of a Pod's containers.
func (m *Manager) Release(uid string) error {
	m.mu.Lock()
	_, had := m.given[uid]
	delete(m.given, uid)
	delete(m.earlier, uid)
	delete(m.unknown, uid)
	a := m.ahead[uid]
	delete(m.ahead, uid)
	m.mu.Unlock()
	if a != nil {
		a.cancel()
	}
	if !had {
		return nil
	}
	return m.save()
}

// Pods returns the UIDs of the Pods that have devices.
func (m *Manager) Pods() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.given))
}

// Resources returns how many devices of each resource the node has, and how many of them are healthy. A resource that is gone for
// good has none.
func (m *Manager) Resources() (capacity, allocatable corev1.ResourceList) {
	m.mu.Lock()
	defer m.mu.Unlock()
	capacity, allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	for name := range m.removed {
		capacity[corev1.ResourceName(name)], allocatable[corev1.ResourceName(name)] = resource.Quantity{}, resource.Quantity{}
	}
	for name, p := range m.pools {
		capacity[corev1.ResourceName(name)] = *resource.NewQuantity(int64(len(p.devices)), resource.DecimalSI)
		allocatable[corev1.ResourceName(name)] = *resource.NewQuantity(int64(len(p.healthyIDs())), resource.DecimalSI)
	}
	return capacity, allocatable
}

// Manages reports whether the resource is a plugin's, that is or was registered.
func (m *Manager) Manages(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.isDevice(name)
}

// isDevice reports whether the resource is a plugin's. The caller holds mu.
func (m *Manager) isDevice(name string) bool {
	if m.pools[name] != nil {
		return true
	}
	for _, containers := range m.given {
		for _, resources := range containers {
			if resources[name] != nil {
				return true
			}
		}
	}
	return false
}
