package csinode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/pluginmanager"
	"github.com/berth-dev/berth/volume/csi"
)

const (
	// migratedAnnotation names the in-tree plugins whose volumes are left to CSI drivers: here, all that ever were.
	migratedAnnotation = "storage.alpha.kubernetes.io/migrated-plugins"
	migratedPlugins    = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder," +
		"kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume"
	// initialBackoff and maxBackoff bound the pause before the CSINode is tried again.
	initialBackoff = 100 * time.Millisecond
	maxBackoff     = 10 * time.Second
)

// Config is the values that a Manager runs with.
type Config struct {
	// NodeName is this node's name.
	NodeName string
}

// Deps is what a Manager needs. NotReady, RefreshPeriod, Clock and Logger may be nil.
type Deps struct {
	Client kubernetes.Interface
	// Drivers gets the drivers that are registered.
	Drivers *csi.Drivers
	// Calls measures what the drivers are called for; nil for no one.
	Calls *csi.CallMetrics
	// Registered is closed when the Node object exists, and Node is its newest state.
	Registered <-chan struct{}
	Node       func() *corev1.Node
	// NotReady makes the node not ready while there is no CSINode; nil ends that.
	NotReady func(reason error)
	// RefreshPeriod is how often a driver is to be asked how many volumes the node can have; 0 is never again.
	// RefreshPeriodsChanged says that its answers may have changed. It must not block. Nil asks none.
	RefreshPeriod func(driver string) time.Duration
	Clock         clock.Clock
	Logger        *slog.Logger
}

// Manager keeps the CSINode. It is safe for concurrent use.
type Manager struct {
	config       Config
	deps         Deps
	created      chan struct{} // closed when the CSINode exists
	nodeReplaced chan struct{} // has a value when the Node may be another one

	writeMu sync.Mutex // held while one of the objects is written, so that our own writes do not conflict

	refreshWakeup chan struct{} // has a value when drivers may have to be asked for their limits

	mu          sync.Mutex // guards all below
	node        types.UID
	infos       map[string]*csipb.NodeGetInfoResponse // what the drivers said, by name
	lastRefresh map[string]time.Time                  // when they were asked for it
	requested   map[string]struct{}                   // those that are to be asked again now
}

var _ pluginmanager.Handler = (*Manager)(nil)

// New makes a Manager.
func New(deps Deps, config Config) (*Manager, error) {
	switch {
	case config.NodeName == "":
		return nil, errors.New("make csi node manager: Config.NodeName is empty")
	case deps.Client == nil || deps.Drivers == nil || deps.Registered == nil || deps.Node == nil:
		return nil, errors.New("make csi node manager: Client, Drivers, Registered and Node are needed in Deps")
	}
	if deps.NotReady == nil {
		deps.NotReady = func(error) {}
	}
	if deps.RefreshPeriod == nil {
		deps.RefreshPeriod = func(string) time.Duration { return 0 }
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	return &Manager{
		config: config, deps: deps, created: make(chan struct{}), nodeReplaced: make(chan struct{}, 1),
		infos: make(map[string]*csipb.NodeGetInfoResponse), refreshWakeup: make(chan struct{}, 1),
		lastRefresh: make(map[string]time.Time), requested: make(map[string]struct{}),
	}, nil
}

// Start makes the CSINode as soon as the Node exists, trying until it succeeds or ctx ends. Drivers are registered
// only then. When another Node takes the place of the first, all is written anew.
func (m *Manager) Start(ctx context.Context) error {
	select {
	case <-m.deps.Registered:
	case <-ctx.Done():
		return nil
	}
	if !m.try(ctx, func() error { _, err := m.ensure(ctx); return err }) {
		return nil
	}
	close(m.created)
	var limits sync.WaitGroup
	defer limits.Wait()
	limits.Go(func() { m.refreshLoop(ctx) })
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.nodeReplaced:
		}
		if !m.try(ctx, func() error { return m.writeAll(ctx) }) {
			return nil
		}
	}
}

// try tries until it succeeds, which it reports, or ctx ends. Meanwhile the node is not ready.
func (m *Manager) try(ctx context.Context, write func() error) bool {
	for backoff := initialBackoff; ; backoff = min(2*backoff, maxBackoff) {
		err := write()
		if err == nil {
			m.deps.NotReady(nil)
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		m.deps.NotReady(fmt.Errorf("CSINode is not yet initialized: %w", err))
		m.deps.Logger.Warn("the CSINode was not written, trying again", "error", err)
		timer := m.deps.Clock.NewTimer(backoff)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return false
		}
	}
}

// NodeChanged takes a new state of this Node. It does not block.
func (m *Manager) NodeChanged(node *corev1.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.node != "" && m.node != node.UID {
		select {
		case m.nodeReplaced <- struct{}{}:
		default:
		}
	}
	m.node = node.UID
}

// writeAll writes down all drivers that are registered, for the Node may be a new one. A CSINode of the Node before is
// not waited for to go: it is taken over.
func (m *Manager) writeAll(ctx context.Context) error {
	m.writeMu.Lock()
	defer m.writeMu.Unlock()
	m.mu.Lock()
	infos := maps.Clone(m.infos)
	m.mu.Unlock()
	if err := m.setOwner(ctx); err != nil {
		return err
	}
	for name, info := range infos {
		if err := m.write(ctx, name, info); err != nil {
			return err
		}
	}
	return nil
}

// ensure reads the CSINode, or makes it.
func (m *Manager) ensure(ctx context.Context) (*storagev1.CSINode, error) {
	api := m.deps.Client.StorageV1().CSINodes()
	object, err := api.Get(ctx, m.config.NodeName, metav1.GetOptions{})
	if err == nil || !apierrors.IsNotFound(err) {
		return object, err
	}
	owner, err := m.ownerRef()
	if err != nil {
		return nil, err
	}
	object, err = api.Create(ctx, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{
		Name: m.config.NodeName, Annotations: map[string]string{migratedAnnotation: migratedPlugins},
		OwnerReferences: []metav1.OwnerReference{owner},
	}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return api.Get(ctx, m.config.NodeName, metav1.GetOptions{})
	}
	return object, err
}

// ownerRef is the Node, with which the CSINode is to go.
func (m *Manager) ownerRef() (metav1.OwnerReference, error) {
	node := m.deps.Node()
	if node == nil {
		return metav1.OwnerReference{}, errors.New("the Node is not known yet")
	}
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}, nil
}

// setOwner makes the present Node the owner of the CSINode.
func (m *Manager) setOwner(ctx context.Context) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		object, err := m.ensure(ctx)
		if err != nil {
			return err
		}
		owner, err := m.ownerRef()
		if err != nil {
			return err
		}
		if len(object.OwnerReferences) == 1 && object.OwnerReferences[0] == owner {
			return nil
		}
		changed := object.DeepCopy()
		changed.OwnerReferences = []metav1.OwnerReference{owner}
		_, err = m.deps.Client.StorageV1().CSINodes().Update(ctx, changed, metav1.UpdateOptions{})
		return err
	})
}

// Register implements pluginmanager.Handler: it asks the driver for its name of this node, writes that down, and lets
// volumes use the driver.
func (m *Manager) Register(ctx context.Context, plugin pluginmanager.Plugin) error {
	if err := checkVersions(plugin); err != nil {
		return err
	}
	var options []grpc.DialOption
	if m.deps.Calls != nil {
		options = append(options, m.deps.Calls.DialOption(plugin.Name))
	}
	driver, err := csi.Dial(ctx, plugin.Name, plugin.Endpoint, options...)
	if err != nil {
		return err
	}
	if err := m.registerDriver(ctx, driver); err != nil {
		_ = driver.Close()
		return err
	}
	m.deps.Drivers.Add(driver)
	return nil
}

// checkVersions refuses drivers that do not speak CSI 1.
func checkVersions(plugin pluginmanager.Plugin) error {
	for _, version := range plugin.Versions {
		if len(version) > 1 && version[0] == 'v' {
			version = version[1:]
		}
		if len(version) > 1 && version[:2] == "1." {
			return nil
		}
	}
	return fmt.Errorf("register csi driver %q: it speaks versions %q of the interface, and none of them is 1.x",
		plugin.Name, plugin.Versions)
}

func (m *Manager) registerDriver(ctx context.Context, driver *csi.Driver) error {
	select {
	case <-m.created:
	case <-ctx.Done():
		return fmt.Errorf("register csi driver %q: wait for the CSINode: %w", driver.Name, ctx.Err())
	}
	info, err := driver.NodeInfo(ctx)
	if err != nil {
		return err
	}
	m.writeMu.Lock()
	defer m.writeMu.Unlock()
	if err := m.write(ctx, driver.Name, info); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.infos[driver.Name], m.lastRefresh[driver.Name] = info, m.deps.Clock.Now()
	return nil
}

// write writes one driver down. The caller holds writing.
func (m *Manager) write(ctx context.Context, name string, info *csipb.NodeGetInfoResponse) error {
	topology := info.GetAccessibleTopology().GetSegments()
	if err := m.patchNode(ctx, name, info.GetNodeId(), topology); err != nil {
		return err
	}
	return m.updateDrivers(ctx, func(drivers []storagev1.CSINodeDriver) []storagev1.CSINodeDriver {
		return append(withoutDriver(drivers, name), csiNodeDriver(name, info))
	})
}

// csiNodeDriver is what the CSINode says of a driver.
func csiNodeDriver(name string, info *csipb.NodeGetInfoResponse) storagev1.CSINodeDriver {
	e := storagev1.CSINodeDriver{Name: name, NodeID: info.GetNodeId()}
	for key := range info.GetAccessibleTopology().GetSegments() {
		e.TopologyKeys = append(e.TopologyKeys, key)
	}
	slices.Sort(e.TopologyKeys)
	if limit := info.GetMaxVolumesPerNode(); limit > 0 {
		e.Allocatable = &storagev1.VolumeNodeResources{Count: ptr.To(int32(min(limit, 1<<31-1)))}
	}
	return e
}

func withoutDriver(drivers []storagev1.CSINodeDriver, name string) []storagev1.CSINodeDriver {
	return slices.DeleteFunc(slices.Clone(drivers), func(d storagev1.CSINodeDriver) bool { return d.Name == name })
}

// Deregister implements pluginmanager.Handler. Another driver of the same name at another socket stays.
func (m *Manager) Deregister(ctx context.Context, plugin pluginmanager.Plugin) error {
	if !m.deps.Drivers.Remove(plugin.Name, plugin.Endpoint) {
		if _, err := m.deps.Drivers.Get(plugin.Name); err == nil {
			return nil
		}
	}
	m.writeMu.Lock()
	defer m.writeMu.Unlock()
	m.mu.Lock()
	delete(m.infos, plugin.Name)
	delete(m.lastRefresh, plugin.Name)
	m.mu.Unlock()
	if err := m.updateDrivers(ctx, func(drivers []storagev1.CSINodeDriver) []storagev1.CSINodeDriver {
		return withoutDriver(drivers, plugin.Name)
	}); err != nil {
		return err
	}
	return m.patchNode(ctx, plugin.Name, "", nil)
}

// updateDrivers changes the drivers of the CSINode, and writes it if that makes a difference.
func (m *Manager) updateDrivers(ctx context.Context, change func([]storagev1.CSINodeDriver) []storagev1.CSINodeDriver) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		object, err := m.ensure(ctx)
		if err != nil {
			return err
		}
		drivers := change(object.Spec.Drivers)
		if sameDrivers(drivers, object.Spec.Drivers) {
			return nil
		}
		changed := object.DeepCopy()
		changed.Spec.Drivers = drivers
		_, err = m.deps.Client.StorageV1().CSINodes().Update(ctx, changed, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("write CSINode %q: %w", m.config.NodeName, err)
	}
	return nil
}
