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

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/kubelet/pluginmanager"
	"github.com/berth-dev/berth/volume/csi"
)

const (
	// migratedAnnotation lists the in-tree plugins whose volumes CSI drivers handle: here, all that ever existed.
	migratedAnnotation = "storage.alpha.kubernetes.io/migrated-plugins"
	migratedPlugins    = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder," +
		"kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume"
	// initialBackoff and maxBackoff bound the wait before a write of the CSINode is retried.
	initialBackoff = 100 * time.Millisecond
	maxBackoff     = 10 * time.Second
)

// Config are the values of a Manager.
type Config struct {
	// NodeName is the name of this node.
	NodeName string
}

// Deps are what a Manager works with. Client, Drivers, Registered and Node are required.
type Deps struct {
	Client kubernetes.Interface
	// Drivers are the registered drivers.
	Drivers *csi.Drivers
	// Calls counts the drivers' calls; it may be nil.
	Calls *csi.CallMetrics
	// Registered is closed when the Node object exists; Node returns its newest state.
	Registered <-chan struct{}
	Node       func() *corev1.Node
	// NotReady marks the node as not ready while there is no CSINode; a nil reason ends that.
	NotReady func(reason error)
	// RefreshPeriod returns how often a driver's volume limit is read; 0 means only at registration.
	// RefreshPeriodsChanged announces changed results. It must not block. If nil, no limit is refreshed.
	RefreshPeriod func(driver string) time.Duration
	Clock         clock.Clock
	Logger        *slog.Logger
}

// Manager manages the CSINode. It is safe for concurrent use.
type Manager struct {
	config       Config
	deps         Deps
	created      chan struct{} // closed when the CSINode exists
	nodeReplaced wakeup.Signal // set when another Node may have replaced the first

	writeMu sync.Mutex // held while one of the objects is written, so that this kubelet's own writes do not conflict

	refreshWakeup wakeup.Signal // set when a refresh may be due

	mu          sync.Mutex // guards all below
	node        types.UID
	infos       map[string]*csipb.NodeGetInfoResponse // the drivers' NodeGetInfo responses, by name
	lastRefresh map[string]time.Time                  // when the response was requested
	requested   map[string]struct{}                   // drivers to refresh now
}

var _ pluginmanager.Handler = (*Manager)(nil)

// New returns a Manager.
func New(deps Deps, config Config) (*Manager, error) {
	switch {
	case config.NodeName == "":
		return nil, errors.New("csinode: Config.NodeName is required")
	case deps.Client == nil:
		return nil, errors.New("csinode: Deps.Client is required")
	case deps.Drivers == nil:
		return nil, errors.New("csinode: Deps.Drivers is required")
	case deps.Registered == nil:
		return nil, errors.New("csinode: Deps.Registered is required")
	case deps.Node == nil:
		return nil, errors.New("csinode: Deps.Node is required")
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
		config: config, deps: deps, created: make(chan struct{}), nodeReplaced: wakeup.NewSignal(),
		infos: make(map[string]*csipb.NodeGetInfoResponse), refreshWakeup: wakeup.NewSignal(),
		lastRefresh: make(map[string]time.Time), requested: make(map[string]struct{}),
	}, nil
}

// Start creates the CSINode when the Node exists, with retries, until ctx ends. Drivers are registered only then. When
// another Node replaces the first, everything is written again.
func (m *Manager) Start(ctx context.Context) error {
	select {
	case <-m.deps.Registered:
	case <-ctx.Done():
		return nil
	}
	if !m.try(ctx, func() error { return m.adopt(ctx) }) {
		return nil
	}
	close(m.created)
	var limits sync.WaitGroup
	defer limits.Wait()
	limits.Go(contain.Loop(ctx, "csinode.refresh", "", m.refreshLoop))
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.nodeReplaced.C():
		}
		if !m.try(ctx, func() error { return m.writeAll(ctx) }) {
			return nil
		}
	}
}

// try calls write until it succeeds, which it reports, or ctx ends. Meanwhile the node is not ready.
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
		m.deps.Logger.Warn("failed to write CSINode; retrying", "error", err)
		if !wakeup.Sleep(ctx, m.deps.Clock, backoff) {
			return false
		}
	}
}

// NodeChanged must be called with each new state of this Node. It does not block.
func (m *Manager) NodeChanged(node *corev1.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.node != "" && m.node != node.UID {
		m.nodeReplaced.Notify()
	}
	m.node = node.UID
}

// writeAll writes all registered drivers to a new Node. It takes over the CSINode of the previous Node instead of
// waiting for its deletion.
func (m *Manager) writeAll(ctx context.Context) error {
	m.writeMu.Lock()
	defer m.writeMu.Unlock()
	if err := m.adopt(ctx); err != nil {
		return err
	}
	for name, info := range m.registered() {
		if err := m.write(ctx, name, info); err != nil {
			return err
		}
	}
	return nil
}

// registered returns what the registered drivers have reported, by their names.
func (m *Manager) registered() map[string]*csipb.NodeGetInfoResponse {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.infos)
}

// ensure reads or creates the CSINode.
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

// ownerRef returns a reference to the Node, with which the CSINode is deleted.
func (m *Manager) ownerRef() (metav1.OwnerReference, error) {
	node := m.deps.Node()
	if node == nil {
		return metav1.OwnerReference{}, errors.New("the Node is not registered yet")
	}
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}, nil
}

// Register implements pluginmanager.Handler: it gets the driver's name of this node, publishes it, and makes the driver
// available for volumes.
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

// checkVersions returns an error for a driver that does not support CSI 1.
func checkVersions(plugin pluginmanager.Plugin) error {
	for _, version := range plugin.Versions {
		if len(version) > 1 && version[0] == 'v' {
			version = version[1:]
		}
		if len(version) > 1 && version[:2] == "1." {
			return nil
		}
	}
	return fmt.Errorf("register CSI driver %q: it supports CSI versions %q, none of which is 1.x",
		plugin.Name, plugin.Versions)
}

// registerDriver publishes the driver once the CSINode exists.
func (m *Manager) registerDriver(ctx context.Context, driver *csi.Driver) error {
	select {
	case <-m.created:
	case <-ctx.Done():
		return fmt.Errorf("register CSI driver %q: wait for the CSINode: %w", driver.Name, ctx.Err())
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

// write publishes one driver. The caller holds writeMu.
func (m *Manager) write(ctx context.Context, name string, info *csipb.NodeGetInfoResponse) error {
	topology := info.GetAccessibleTopology().GetSegments()
	if err := m.patchNode(ctx, name, info.GetNodeId(), topology); err != nil {
		return err
	}
	return m.updateDrivers(ctx, func(drivers []storagev1.CSINodeDriver) []storagev1.CSINodeDriver {
		return append(withoutDriver(drivers, name), csiNodeDriver(name, info))
	})
}

// csiNodeDriver returns a driver's entry in the CSINode.
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

// Deregister implements pluginmanager.Handler. Another driver of the same name with another socket stays registered.
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

// updateDrivers changes the drivers of the CSINode and writes it if that makes a difference.
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
