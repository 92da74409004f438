package csinode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	// firstRetry and lastRetry bound the pause before the CSINode is tried again.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// Config is the values that a Manager runs with.
type Config struct {
	// NodeName is this node's name.
	NodeName string
}

// Deps is what a Manager needs. NotReady, Clock and Logger may be nil.
type Deps struct {
	Client kubernetes.Interface
	// Drivers gets the drivers that are registered.
	Drivers *csi.Drivers
	// Registered is closed when the Node object exists, and Node is its newest state.
	Registered <-chan struct{}
	Node       func() *corev1.Node
	// NotReady makes the node not ready while there is no CSINode; nil ends that.
	NotReady func(reason error)
	Clock    clock.Clock
	Logger   *slog.Logger
}

// Manager keeps the CSINode. It is safe for concurrent use.
type Manager struct {
	config Config
	deps   Deps
	made   chan struct{} // closed when the CSINode exists

	writing sync.Mutex // held while one of the objects is written, so that our own writes do not conflict
}

var _ pluginmanager.Handler = (*Manager)(nil)

// New makes a Manager.
func New(config Config, deps Deps) (*Manager, error) {
	switch {
	case config.NodeName == "":
		return nil, errors.New("make csi node manager: Config.NodeName is empty")
	case deps.Client == nil || deps.Drivers == nil || deps.Registered == nil || deps.Node == nil:
		return nil, errors.New("make csi node manager: Client, Drivers, Registered and Node are needed in Deps")
	}
	if deps.NotReady == nil {
		deps.NotReady = func(error) {}
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	return &Manager{config: config, deps: deps, made: make(chan struct{})}, nil
}

// Start makes the CSINode as soon as the Node exists, trying until it succeeds or ctx ends. Drivers are registered
// only then.
func (m *Manager) Start(ctx context.Context) error {
	select {
	case <-m.deps.Registered:
	case <-ctx.Done():
		return nil
	}
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		_, err := m.ensure(ctx)
		if err == nil {
			break
		}
		m.deps.NotReady(fmt.Errorf("CSINode is not yet initialized: %w", err))
		m.deps.Logger.Warn("the CSINode was not made, trying again", "error", err)
		timer := m.deps.Clock.NewTimer(pause)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
	m.deps.NotReady(nil)
	close(m.made)
	<-ctx.Done()
	return nil
}

// ensure reads the CSINode, or makes it.
func (m *Manager) ensure(ctx context.Context) (*storagev1.CSINode, error) {
	api := m.deps.Client.StorageV1().CSINodes()
	object, err := api.Get(ctx, m.config.NodeName, metav1.GetOptions{})
	if err == nil || !apierrors.IsNotFound(err) {
		return object, err
	}
	node := m.deps.Node()
	if node == nil {
		return nil, errors.New("the Node is not known yet")
	}
	object, err = api.Create(ctx, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{
		Name: m.config.NodeName, Annotations: map[string]string{migratedAnnotation: migratedPlugins},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
	}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return api.Get(ctx, m.config.NodeName, metav1.GetOptions{})
	}
	return object, err
}

// Register implements pluginmanager.Handler: it asks the driver for its name of this node, writes that down, and lets
// volumes use the driver.
func (m *Manager) Register(ctx context.Context, plugin pluginmanager.Plugin) error {
	if err := checkVersions(plugin); err != nil {
		return err
	}
	driver, err := csi.Dial(ctx, plugin.Name, plugin.Endpoint)
	if err != nil {
		return err
	}
	if err := m.takeOn(ctx, driver); err != nil {
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

func (m *Manager) takeOn(ctx context.Context, driver *csi.Driver) error {
	select {
	case <-m.made:
	case <-ctx.Done():
		return fmt.Errorf("register csi driver %q: wait for the CSINode: %w", driver.Name, ctx.Err())
	}
	info, err := driver.NodeInfo(ctx)
	if err != nil {
		return err
	}
	m.writing.Lock()
	defer m.writing.Unlock()
	topology := info.GetAccessibleTopology().GetSegments()
	if err := m.tellNode(ctx, driver.Name, info.GetNodeId(), topology); err != nil {
		return err
	}
	return m.change(ctx, func(drivers []storagev1.CSINodeDriver) []storagev1.CSINodeDriver {
		return append(without(drivers, driver.Name), entry(driver.Name, info))
	})
}

// entry is what the CSINode says of a driver.
func entry(name string, info *csipb.NodeGetInfoResponse) storagev1.CSINodeDriver {
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

func without(drivers []storagev1.CSINodeDriver, name string) []storagev1.CSINodeDriver {
	return slices.DeleteFunc(slices.Clone(drivers), func(d storagev1.CSINodeDriver) bool { return d.Name == name })
}

// Deregister implements pluginmanager.Handler. Another driver of the same name at another socket stays.
func (m *Manager) Deregister(ctx context.Context, plugin pluginmanager.Plugin) error {
	if !m.deps.Drivers.Remove(plugin.Name, plugin.Endpoint) {
		if _, err := m.deps.Drivers.Get(plugin.Name); err == nil {
			return nil
		}
	}
	m.writing.Lock()
	defer m.writing.Unlock()
	if err := m.change(ctx, func(drivers []storagev1.CSINodeDriver) []storagev1.CSINodeDriver {
		return without(drivers, plugin.Name)
	}); err != nil {
		return err
	}
	return m.tellNode(ctx, plugin.Name, "", nil)
}

// change changes the drivers of the CSINode, and writes it if that makes a difference.
func (m *Manager) change(ctx context.Context, how func([]storagev1.CSINodeDriver) []storagev1.CSINodeDriver) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		object, err := m.ensure(ctx)
		if err != nil {
			return err
		}
		drivers := how(object.Spec.Drivers)
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
