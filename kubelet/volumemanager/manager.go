package volumemanager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/keyed"
	"github.com/berth-dev/berth/kubelet/node"
	"github.com/berth-dev/berth/kubelet/volumemanager/devices"
	"github.com/berth-dev/berth/kubelet/volumemanager/expand"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/blockpin"
	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/selinux"
	"github.com/berth-dev/berth/volume/subpath"
)

// ErrTerminating means that a Pod's volumes cannot be mounted because they are being unmounted.
var ErrTerminating = errors.New("the volumes of this pod are being unmounted")

// Objects watches the API objects that Pods refer to (see package objects).
type Objects interface {
	Acquire(pod *corev1.Pod)
	Release(uid types.UID)
	Subscribe(changed func(uid types.UID)) (cancel func())
}

// Tokens keeps the tokens of Pods' service accounts (see package token).
type Tokens = Source

// Source is a component that provides the content of volumes and notifies the Manager when it changes.
type Source interface {
	// Subscribe calls changed with the UID of each Pod whose content has changed.
	Subscribe(changed func(uid types.UID)) (cancel func())
	// Forget is called when a Pod's volumes are unmounted.
	Forget(uid types.UID)
}

// NodeStatus writes this Node's status. *node.Manager implements it.
type NodeStatus = devices.NodeStatus

// Config holds the settings of a Manager. RootDir and NodeName are required.
type Config struct {
	// RootDir is the kubelet's root directory; the Pods' directories are in RootDir/pods.
	RootDir string
	// NodeName is this node's name.
	NodeName string
	// SELinuxMount mounts volumes of all access modes with the SELinux label of their Pod, and not only ReadWriteOncePod
	// ones, where their driver supports it.
	SELinuxMount bool
	// UsageMaxAge is how old the usage of a volume on the node's disk may be that Stats returns: it is measured file by file. A minute
	// if zero; if negative, Stats returns that of the file system.
	UsageMaxAge time.Duration
	// NoAPIServer rejects volumes whose content only an API server has.
	NoAPIServer bool
}

func (c Config) validate() error {
	switch {
	case c.RootDir == "":
		return errors.New("volumemanager: Config.RootDir is required")
	case c.NodeName == "":
		return errors.New("volumemanager: Config.NodeName is required")
	}
	return nil
}

// Deps holds what a Manager uses. Client, Plugins, Objects and Tokens are required. It has many fields because volumes depend
// on many components.
type Deps struct {
	// Client reads claims, PersistentVolumes and this Node, and writes the status of claims.
	Client  kubernetes.Interface
	Plugins *volume.Registry
	Objects Objects
	Tokens  Tokens
	// Sources provide more content of volumes.
	Sources []Source
	// Node writes status.volumesInUse. If it is nil, volumes that must be attached are rejected.
	Node NodeStatus
	// Claims reports changes of claims. If it is nil, a volume that waits for its claim reads it each second, and each
	// minute the volumes of claims are checked for a larger size.
	Claims ClaimSource
	// Observe, if not nil, gets the duration of each attempt of an operation on a volume, with the plugin's qualified
	// name and the operation's name in metrics (see operationexecutor.Durations). It must not block.
	Observe func(plugin, operation string, took time.Duration, err error)
	// OnFailure, if not nil, is called with the UID of a Pod each time that one of its volumes has failed, before the event that says so. It
	// must not block.
	OnFailure func(uid types.UID)
	// Mounter defaults to system calls.
	Mounter mounts.Mounter
	// SELinux defaults to this machine's.
	SELinux selinux.Labels
	// MaySwap reports whether the kernel may write memory-backed volumes to a disk. The default checks the kernel.
	MaySwap func() (bool, error)
	// Timeline, Recorder and Logger may be nil. Clock defaults to the real clock.
	Timeline *timeline.Recorder
	Recorder record.EventRecorder
	Logger   *slog.Logger
	Clock    clock.Clock
}

func (d *Deps) complete() error {
	switch {
	case d.Client == nil:
		return errors.New("volumemanager: Deps.Client is required")
	case d.Plugins == nil:
		return errors.New("volumemanager: Deps.Plugins is required")
	case d.Objects == nil:
		return errors.New("volumemanager: Deps.Objects is required")
	case d.Tokens == nil:
		return errors.New("volumemanager: Deps.Tokens is required")
	}
	if d.Observe == nil {
		d.Observe = func(string, string, time.Duration, error) {}
	}
	if d.Mounter == nil {
		d.Mounter = mounts.Syscalls{}
	}
	if d.SELinux == nil {
		d.SELinux = selinux.Kernel{}
	}
	if d.MaySwap == nil {
		d.MaySwap = func() (bool, error) { return mounts.TmpfsMaySwap(mounts.SwapsFile) }
	}
	if d.Recorder == nil {
		d.Recorder = &record.FakeRecorder{}
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
	return nil
}

// Mounted is a volume of a Pod that is set up.
type Mounted struct {
	// Path is the volume's path on this node: a directory, or for hostPath a file or a device.
	Path string
	// ReadOnly means that containers must get it read-only, whatever their volumeMounts say.
	ReadOnly bool
	// Block means that Path is a block device, for volumeDevices of containers.
	Block bool
	// SELinuxRelabel means that the container runtime has to give the files the SELinux label of the container.
	SELinuxRelabel bool
	// Spec is the volume with its claim and PersistentVolume, if it has them. It is shared and must not be modified.
	Spec volume.Spec
}

// Manager is the volume manager. It is safe for concurrent use.
//
// It has many methods because mounting, refreshing, expanding and unmounting a Pod's volumes exclude each other through
// one state per Pod; each file has one of these topics.
type Manager struct {
	config Config
	deps   Deps
	clock  clock.Clock
	logger *slog.Logger
	// measurements are those of volumes that are under way.
	measurements *measurements
	recovery     *recoveryMetrics
	operations   *keyed.Executor
	metrics      opMetrics
	subpaths     *subpath.SubPaths
	pinner       *blockpin.Pinner
	devices      *devices.Table
	expander     *expand.Expander
	seLinux      *seLinux
	ready        chan struct{} // closed when RootDir is prepared
	rootMu       sync.Mutex    // held while the mount on RootDir is created or removed; taken before mu
	podTable
}

// New returns a Manager. It starts nothing.
func New(deps Deps, config Config) (*Manager, error) {
	if err := deps.complete(); err != nil {
		return nil, err
	}
	if err := config.validate(); err != nil {
		return nil, err
	}
	config.UsageMaxAge = cmp.Or(config.UsageMaxAge, defaultUsageMaxAge)
	m := &Manager{
		config: config, deps: deps, clock: deps.Clock, logger: deps.Logger,
		operations: keyed.New(keyed.Deps{Clock: deps.Clock, Logger: deps.Logger, OnWait: recordWait}, keyed.Config{}),
		metrics:    opMetrics{clock: deps.Clock, observe: deps.Observe},
		subpaths:   subpath.New(deps.Mounter),
		pinner:     blockpin.New(blockpin.Deps{Mounter: deps.Mounter, Clock: deps.Clock}),
		ready:      make(chan struct{}), measurements: newMeasurements(), recovery: newRecoveryMetrics(),
		seLinux:  newSELinux(deps.SELinux, config.SELinuxMount),
		podTable: newPodTable(),
	}
	m.devices = devices.New(devices.Deps{
		Node: deps.Node, Operations: m.operations, MeasureUnstage: m.metrics.measureUnstage,
		Clock: deps.Clock, Logger: deps.Logger,
	})
	m.expander = expand.New(expand.Deps{
		Client: deps.Client, Recorder: deps.Recorder, Timeline: deps.Timeline, Clock: deps.Clock, Logger: deps.Logger,
	}, config.NodeName)
	return m, nil
}

// recordWait adds the time that an operation waited for its turn to the stage that ctx belongs to.
func recordWait(ctx context.Context, waited time.Duration) { timeline.Current(ctx).AddWait(waited) }

// Start creates the root directory, makes mounts below it propagate into containers, and then keeps mounted volumes up
// to date until ctx ends. Mount and Unmount block until the root directory is ready. Start is called once.
func (m *Manager) Start(ctx context.Context) error {
	if err := m.prepareRoot(); err != nil {
		return fmt.Errorf("prepare root directory for volumes: %w", err)
	}
	defer m.deps.Objects.Subscribe(m.onPodChanged)()
	defer m.deps.Tokens.Subscribe(m.onPodChanged)()
	for _, source := range m.deps.Sources {
		defer source.Subscribe(m.onPodChanged)()
	}
	if m.deps.Claims != nil {
		defer m.deps.Claims.Subscribe(m.onClaimChanged)()
	}
	if err := m.recoverVolumes(); err != nil {
		return fmt.Errorf("find volumes of an earlier process: %w", err)
	}
	close(m.ready)
	m.warnIfMemoryMaySwap()
	var group sync.WaitGroup
	defer group.Wait()
	for _, loop := range []func(context.Context){m.devices.Start, m.resyncLoop, m.expandLoop, m.healthLoop} {
		group.Go(contain.Loop(ctx, "volumemanager.loop", "", loop))
	}
	m.refreshLoop(ctx)
	return nil
}

// warnIfMemoryMaySwap writes an event about this Node if memory-backed volumes, and thereby secrets, may be swapped to a
// disk.
func (m *Manager) warnIfMemoryMaySwap() {
	maySwap, err := m.deps.MaySwap()
	if err != nil {
		m.logger.Warn("failed to determine whether memory-backed volumes can be swapped to a disk", "error", err)
	}
	if maySwap {
		m.deps.Recorder.Event(node.Reference(m.config.NodeName), corev1.EventTypeWarning, reasonMemoryOnDisk,
			"This machine has swap, and its kernel cannot exclude a tmpfs from it (Linux 6.4 and later can): the content of "+
				"memory-backed volumes, including secrets, may be written to a disk. Turn swap off, or encrypt it")
	}
}

// prepareRoot creates the root directory, unless UnmountAll was called already.
func (m *Manager) prepareRoot() error {
	m.rootMu.Lock()
	defer m.rootMu.Unlock()
	m.mu.Lock()
	stopped := m.stopped
	m.mu.Unlock()
	if stopped {
		return nil
	}
	if err := os.MkdirAll(volume.PodsDir(m.config.RootDir), 0o750); err != nil {
		return err
	}
	_, err := mounts.MakeShared(m.deps.Mounter, m.config.RootDir)
	return err
}

// Volumes returns the Pod's volumes that are set up, by their names in the Pod. The caller owns the map.
func (m *Manager) Volumes(uid types.UID) map[string]Mounted {
	m.mu.Lock()
	defer m.mu.Unlock()
	state, ok := m.pods[uid]
	if !ok {
		return map[string]Mounted{}
	}
	volumes := make(map[string]Mounted, len(state.mounted))
	for name, mounted := range state.mounted {
		volumes[name] = mounted.Mounted
	}
	return volumes
}

// SubPaths prepares parts of volumes for containers. Unmount removes them.
func (m *Manager) SubPaths() *subpath.SubPaths { return m.subpaths }

// NodeChanged records which volumes this Node reports as attached. It does not block.
func (m *Manager) NodeChanged(node *corev1.Node) { m.devices.NodeChanged(node) }

// PodUpdated records a change of the Pod's object: its labels, its annotations, or its containers. Volumes that show
// those are refreshed. A Pod that Mount has not seen is ignored.
func (m *Manager) PodUpdated(pod *corev1.Pod) {
	m.mu.Lock()
	state, ok := m.pods[pod.UID]
	if ok {
		state.pod = pod
	}
	m.mu.Unlock()
	if !ok {
		return
	}
	m.deps.Objects.Acquire(pod)
	m.mu.Lock()
	gone := m.pods[pod.UID] != state
	m.mu.Unlock()
	if gone { // Unmount has released the objects just before
		m.deps.Objects.Release(pod.UID)
		return
	}
	m.onPodChanged(pod.UID)
}

// onPodChanged refreshes the Pod's volumes and retries those that failed, because an object that they depend on changed.
func (m *Manager) onPodChanged(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if state, ok := m.pods[uid]; ok {
		state.retry.Notify()
		m.toRefresh.add(uid)
	}
}

// Retry retries now everything that failed, because something changed that many may have waited for, such as the
// registration of a CSI driver.
func (m *Manager) Retry() {
	m.devices.Retry()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, state := range m.pods {
		state.retry.Notify()
	}
}
