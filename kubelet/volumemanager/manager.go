package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/keyed"
	"github.com/berth-dev/berth/kubelet/node"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/blockpin"
	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/subpath"
)

const (
	// slowMountInterval is how long the volumes of a Pod may take before an event names those that are missing; it is
	// repeated as often.
	slowMountInterval = 2*time.Minute + 3*time.Second
	// eventRepeatInterval is after how long the same failure of the same volume gives an event again.
	eventRepeatInterval = 5 * time.Minute
	// maxConcurrentRefreshes is how many Pods' volumes are refreshed at once.
	maxConcurrentRefreshes = 8
	// The reasons of events.
	reasonFailedMount         = "FailedMount"
	reasonFailedMap           = "FailedMapVolume"
	reasonFailedUnmount       = "FailedUnmount"
	reasonOwnershipInProgress = "VolumePermissionChangeInProgress"
	reasonMemoryOnDisk        = "PossibleMemoryBackedVolumesOnDisk"
)

// ErrTerminating says that a Pod's volumes cannot be mounted because they are being unmounted.
var ErrTerminating = errors.New("the volumes of this pod are being unmounted")

// Objects is the objects of the API that Pods refer to (see package objects).
type Objects interface {
	Acquire(pod *corev1.Pod)
	Release(uid types.UID)
	Subscribe(changed func(uid types.UID)) (cancel func())
}

// Tokens is the tokens of Pods' service accounts (see package token).
type Tokens interface {
	Forget(uid types.UID)
	Subscribe(renewed func(uid types.UID)) (cancel func())
}

// Config holds the settings of a Manager. Both are required.
type Config struct {
	// RootDir is the kubelet's root directory; the Pods' directories are in RootDir/pods.
	RootDir string
	// NodeName is this node's name.
	NodeName string
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

// Deps holds what a Manager uses. Client, Plugins, Objects and Tokens are required.
type Deps struct {
	// Client reads claims, PersistentVolumes and this Node, and writes the status of claims.
	Client  kubernetes.Interface
	Plugins *volume.Registry
	Objects Objects
	Tokens  Tokens
	// Node writes status.volumesInUse. If it is nil, volumes that must be attached are rejected.
	Node NodeStatus
	// Claims reports changes of claims. If it is nil, a volume that waits for its claim reads it each second, and each
	// minute the volumes of claims are checked for a larger size.
	Claims ClaimSource
	// OnSizeLimitExceeded, if not nil, is called for a Pod with an emptyDir that is larger than its sizeLimit, so
	// that the Pod is evicted. It must not block. It is called again until the volume is unmounted.
	OnSizeLimitExceeded func(uid types.UID, message string)
	// Observe, if not nil, gets the duration of each attempt of an operation on a volume, with the plugin's qualified
	// name and the operation's name in metrics (see operationexecutor.Durations). It must not block.
	Observe func(plugin, operation string, took time.Duration, err error)
	// Mounter defaults to system calls.
	Mounter mounts.Mounter
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
	if d.Mounter == nil {
		d.Mounter = mounts.Syscalls{}
	}
	if d.MaySwap == nil {
		d.MaySwap = func() (bool, error) { return mounts.TmpfsMaySwap(mounts.SwapsFile) }
	}
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	if d.Recorder == nil {
		d.Recorder = &record.FakeRecorder{}
	}
	return nil
}

// Mounted is a volume of a Pod that is set up.
type Mounted struct {
	// Path is where the volume is on this node: a directory, or for hostPath a file or a device.
	Path string
	// ReadOnly says that containers must get it read-only, whatever their volumeMounts say.
	ReadOnly bool
	// Block says that Path is a block device, to be given to containers by volumeDevices.
	Block bool
	// Spec is the volume with its claim and PersistentVolume, if it has them. Shared: not written to.
	Spec volume.Spec
}

// Manager is the volume manager. It is safe for concurrent use.
type Manager struct {
	config        Config
	deps          Deps
	clock         clock.Clock
	logger        *slog.Logger
	exec          *keyed.Executor
	subpaths      *subpath.SubPaths
	pinner        *blockpin.Pinner
	devices       *deviceTable
	metrics       opMetrics
	ready         chan struct{} // closed when RootDir is prepared
	refreshQueued chan struct{} // has a value when dirty may not be empty

	resyncQueued  chan struct{} // has a value when again has got its first entry
	measureQueued chan struct{} // has a value when there may be emptyDirs to measure
	expandQueued  chan struct{} // has a value when grown may not be empty

	rootMu sync.Mutex // held while the root directory's own mount is made or released; taken before mu

	mu            sync.Mutex // guards all below
	pods          map[types.UID]*podState
	podsToRefresh map[types.UID]struct{}                          // Pods whose volumes may have to be refreshed
	stopped       bool                                            // UnmountAll was called
	podsToResync  map[types.UID]struct{}                          // Pods with volumes that are looked after now and then
	podsToExpand  map[types.UID]struct{}                          // Pods with volumes that may have to grow
	podsByClaim   map[types.NamespacedName]map[types.UID]struct{} // by claim, the Pods that use it
}

// podState is what is known of one Pod's volumes. gate is held for reading by operations on them, and for writing to
// wait until there are none; the rest is guarded by the Manager's mutex.
type podState struct {
	uid     types.UID
	gate    sync.RWMutex
	closing chan struct{} // closed when Unmount begins

	pod                 *corev1.Pod // as last seen
	mounted             map[string]*mountedVolume
	terminating         map[string]*mountedVolume // what was mounted when Unmount began, until nothing of the Pod is left
	lastEvents          map[string]lastEvent      // by volume, the failure that the last event was about
	retryCh             chan struct{}             // closed, and made anew, when something changed that may cure a failure
	refreshRetryPending bool                      // a refresh is to be tried again later
}

type mountedVolume struct {
	Mounted
	plugin  volume.Plugin
	request volume.Request
	// expandedTo is the size in bytes up to which this node has done its part in making the volume larger, 0 if an
	// earlier process would have to tell. It is shared by copies of this struct.
	expandedTo *atomic.Int64
}

type lastEvent struct {
	message string
	at      time.Time
}

// New returns a Manager. It starts nothing.
func New(deps Deps, config Config) (*Manager, error) {
	if err := deps.complete(); err != nil {
		return nil, err
	}
	if err := config.validate(); err != nil {
		return nil, err
	}
	exec := keyed.New(keyed.Deps{Clock: deps.Clock, Logger: deps.Logger, OnWait: recordWait}, keyed.Config{})
	meter := opMetrics{clock: deps.Clock, observe: deps.Observe}
	return &Manager{
		config: config, deps: deps, clock: deps.Clock, logger: deps.Logger, exec: exec, metrics: meter,
		subpaths:      subpath.New(deps.Mounter),
		pinner:        blockpin.New(blockpin.Deps{Mounter: deps.Mounter, Clock: deps.Clock}),
		devices:       newDeviceTable(deps.Node, exec, meter, deps.Clock, deps.Logger),
		podsToResync:  make(map[types.UID]struct{}),
		resyncQueued:  make(chan struct{}, 1),
		measureQueued: make(chan struct{}, 1),
		expandQueued:  make(chan struct{}, 1),
		podsToExpand:  make(map[types.UID]struct{}),
		podsByClaim:   make(map[types.NamespacedName]map[types.UID]struct{}),
		ready:         make(chan struct{}),
		refreshQueued: make(chan struct{}, 1),
		pods:          make(map[types.UID]*podState),
		podsToRefresh: make(map[types.UID]struct{}),
	}, nil
}

// recordWait adds the time that an operation waited for its turn to the stage that ctx belongs to.
func recordWait(ctx context.Context, waited time.Duration) { timeline.Current(ctx).AddWait(waited) }

// Start prepares the root directory (it is made if it is missing, and mounts below it are made to propagate into
// containers), and then keeps mounted volumes up to date until ctx ends. It must run for Mount to go on. It is called
// once.
func (m *Manager) Start(ctx context.Context) error {
	if err := m.prepareRoot(); err != nil {
		return fmt.Errorf("prepare root directory for volumes: %w", err)
	}
	defer m.deps.Objects.Subscribe(m.onPodChanged)()
	defer m.deps.Tokens.Subscribe(m.onPodChanged)()
	if m.deps.Claims != nil {
		defer m.deps.Claims.Subscribe(m.onClaimChanged)()
	}
	if err := m.recoverDevices(); err != nil {
		return fmt.Errorf("find volumes that an earlier process left: %w", err)
	}
	close(m.ready)
	m.warnIfMemoryMaySwap()
	var group sync.WaitGroup
	defer group.Wait()
	for _, loop := range []func(context.Context){m.devices.reportInUseLoop, m.devices.unstageLoop, m.resyncLoop, m.expandLoop, m.sizeLimitLoop} {
		group.Go(func() { loop(ctx) })
	}
	m.refreshLoop(ctx)
	return nil
}

// warnIfMemoryMaySwap writes an event about this Node if what Pods keep in memory, secrets among it, may reach a disk.
func (m *Manager) warnIfMemoryMaySwap() {
	may, err := m.deps.MaySwap()
	if err != nil {
		m.logger.Warn("nobody knows whether memory-backed volumes may be swapped to a disk", "error", err)
	}
	if may {
		m.deps.Recorder.Event(node.Reference(m.config.NodeName), corev1.EventTypeWarning, reasonMemoryOnDisk, "This machine has swap, and its kernel cannot keep a "+
			"tmpfs out of it (Linux 6.4 and later can): what volumes hold in memory, secrets too, may be written to a disk. "+
			"Turn swap off, or encrypt it")
	}
}

// prepareRoot makes the root directory, unless everything was unmounted for good already.
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

// SubPaths prepares parts of volumes for containers. They are cleaned up by Unmount.
func (m *Manager) SubPaths() *subpath.SubPaths { return m.subpaths }

// PodUpdated says that the Pod's object changed: its labels, its annotations, or the containers that it has. Volumes
// that show those are brought up to date. A Pod that Mount has not seen is ignored.
func (m *Manager) PodUpdated(pod *corev1.Pod) {
	m.mu.Lock()
	state, ok := m.pods[pod.UID]
	if ok {
		state.pod = pod
	}
	m.mu.Unlock()
	if ok {
		m.deps.Objects.Acquire(pod)
		m.onPodChanged(pod.UID)
	}
}

// onPodChanged notes that something changed that the Pod's volumes may show, or that may cure one that failed.
func (m *Manager) onPodChanged(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.wakeWaiters(uid) {
		m.queueRefresh(uid)
	}
}

// wakeWaiters has failed volumes of the Pod tried again now. It returns false if the Pod is unknown. The caller holds
// mu.
func (m *Manager) wakeWaiters(uid types.UID) bool {
	state, ok := m.pods[uid]
	if ok {
		close(state.retryCh)
		state.retryCh = make(chan struct{})
	}
	return ok
}

// queueRefresh has the Pod's volumes refreshed. The caller holds mu.
func (m *Manager) queueRefresh(uid types.UID) {
	m.podsToRefresh[uid] = struct{}{}
	signal(m.refreshQueued)
}

// podStateFor finds or makes the Pod's state and notes the Pod as last seen.
func (m *Manager) podStateFor(pod *corev1.Pod) (*podState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped {
		return nil, ErrTerminating
	}
	state, ok := m.pods[pod.UID]
	if !ok {
		state = newPodState(pod.UID)
		m.pods[pod.UID] = state
	}
	if state.isClosing() {
		return nil, ErrTerminating
	}
	state.pod = pod
	m.indexClaims(pod)
	return state, nil
}

func newPodState(uid types.UID) *podState {
	return &podState{
		uid: uid, closing: make(chan struct{}), retryCh: make(chan struct{}),
		mounted: make(map[string]*mountedVolume), lastEvents: make(map[string]lastEvent),
	}
}

func (s *podState) isClosing() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

// reportFailure writes an event about what failed with a volume, unless the last one said the same not long ago.
func (m *Manager) reportFailure(state *podState, name, reason, message string) {
	now := m.clock.Now()
	m.mu.Lock()
	last := state.lastEvents[name]
	skip := last.message == message && now.Sub(last.at) < eventRepeatInterval
	if !skip {
		state.lastEvents[name] = lastEvent{message: message, at: now}
	}
	pod := state.pod
	m.mu.Unlock()
	if !skip && pod != nil {
		m.deps.Recorder.Event(pod, corev1.EventTypeWarning, reason, message)
	}
}

// remedy is what a person can do about a failure for which the kernel is the reason.
func remedy(err error) string {
	switch {
	case errors.Is(err, unix.EPERM):
		return " (is a directory on the way immutable? lsattr -d shows it, chattr -i ends it)"
	case errors.Is(err, unix.EROFS):
		return " (the file system is read-only: the kernel's log, dmesg, says why)"
	case errors.Is(err, unix.ENOSPC):
		return " (the disk is full: df -h and df -i show which)"
	}
	return ""
}
