package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// usageInterval is how often memory, disk and process IDs are measured: the kernel has no event for them that works
	// everywhere.
	usageInterval = 10 * time.Second
	// runtimeInterval is how often the status of a healthy runtime is read: the CRI has no event for changes of its
	// network condition.
	runtimeInterval = 30 * time.Second
	// imagesInterval is how often the images are listed without a call of ImagesChanged.
	imagesInterval = 5 * time.Minute
	// runtimeGrace is how long the runtime may be unreachable (a restart of containerd) before the node is not ready.
	runtimeGrace = 30 * time.Second
	// pressureHold is how long a pressure condition outlasts its cause, so that it does not flap.
	pressureHold = 5 * time.Minute
	// callTimeout bounds one call of the runtime.
	callTimeout = 10 * time.Second
	// retryMin and retryMax bound the wait before a retry.
	retryMin = 100 * time.Millisecond
	retryMax = 5 * time.Second
)

// errNodeDeleted means that the Node object was deleted.
var errNodeDeleted = errors.New("the node object was deleted")

// Manager manages the Node object. It is safe for concurrent use.
type Manager struct {
	config     Config
	deps       Deps
	wake       wakeup.Signal // set when there may be something to write
	registered chan struct{} // closed when the Node exists

	// The fields below are used by the goroutine of the status writer only.
	observed       observed
	runtimeSeen    time.Time // time of the runtime's last response; zero: none yet
	runtimeErr     error
	nextRuntime    time.Time
	nextImages     time.Time
	lastPressure   [3]time.Time // memory, disk, pid: when the pressure was last observed
	reported       time.Time    // when the status was last written
	retry          time.Duration
	rebootReported bool
	conflict       statusConflict

	mu              sync.Mutex // guards all below
	node            *corev1.Node
	deleted         bool // the Node was deleted in the API server
	cordoned        bool // as in the last event
	ips             []net.IP
	runtimeStale    bool
	imagesStale     bool
	notReadyReasons map[string]error // by key, see SetNotReady
	volumes         []corev1.UniqueVolumeName
	volumesGen      int64 // number of SetVolumesInUse calls
	writtenGen      int64
	written         wakeup.Broadcast // notified when writtenGen grows
	capacity        corev1.ResourceList
	allocatable     corev1.ResourceList
}

// New returns a Manager.
func New(deps Deps, config Config) (*Manager, error) {
	if err := errors.Join(config.complete(), deps.complete()); err != nil {
		return nil, err
	}
	return &Manager{
		config:          config,
		deps:            deps,
		ips:             config.IPs,
		wake:            wakeup.NewSignal(),
		registered:      make(chan struct{}),
		runtimeStale:    true,
		imagesStale:     true,
		notReadyReasons: make(map[string]error),
	}, nil
}

// Start registers the Node and manages it until ctx ends. It must be called once.
func (m *Manager) Start(ctx context.Context) error {
	if m.deps.Recorder != nil {
		m.deps.Recorder.Event(Reference(m.config.Name), corev1.EventTypeNormal, "Starting", "Starting kubelet.")
	}
	if err := m.register(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	close(m.registered)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return m.watch(ctx) })
	group.Go(func() error { return m.renewLease(ctx) })
	group.Go(func() error { return m.write(ctx) })
	return group.Wait()
}

// Registered returns a channel that is closed when the Node object exists in the API server.
func (m *Manager) Registered() <-chan struct{} { return m.registered }

// Node returns the newest known state of the Node object, nil before registration. The caller must not modify it.
func (m *Manager) Node() *corev1.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.node
}

// Resources returns the node's capacity and what Pods may use of it. The first call reads them from the machine; no API
// server is needed. The caller must not modify the lists.
func (m *Manager) Resources() (capacity, allocatable corev1.ResourceList, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.capacity == nil {
		info, err := m.deps.Machine.Info()
		if err != nil {
			return nil, nil, fmt.Errorf("read machine resources: %w", err)
		}
		usage, err := m.deps.Machine.Usage()
		if err != nil {
			return nil, nil, fmt.Errorf("read machine resources: %w", err)
		}
		m.capacity, m.allocatable = nodeResources(&m.config, info, usage)
	}
	return m.capacity, m.allocatable, nil
}

// RuntimeChanged must be called when the runtime was connected or lost, or its network changed. The Manager then reads
// the runtime's status.
func (m *Manager) RuntimeChanged() {
	m.mu.Lock()
	m.runtimeStale = true
	m.mu.Unlock()
	m.wake.Notify()
}

// ImagesChanged must be called when an image was pulled or removed.
func (m *Manager) ImagesChanged() {
	m.mu.Lock()
	m.imagesStale = true
	m.mu.Unlock()
	m.wake.Notify()
}

// SetIPs sets the node's addresses, the primary one first.
func (m *Manager) SetIPs(ips []net.IP) {
	m.mu.Lock()
	m.ips = ips
	m.mu.Unlock()
	m.wake.Notify()
}

// SetNotReady makes the node not ready for a reason identified by key, until it is called with nil for the same key.
func (m *Manager) SetNotReady(key string, reason error) {
	m.mu.Lock()
	if reason == nil {
		delete(m.notReadyReasons, key)
	} else {
		m.notReadyReasons[key] = reason
	}
	m.mu.Unlock()
	m.wake.Notify()
}

// SetVolumesInUse sets the attachable volumes in use on the node and returns when the API server has stored them, or
// when ctx ends. A volume must be reported as in use before it is used and until after it is released: only then the
// attach/detach controller does not detach it too early. Until the first call the Node's own list is kept.
func (m *Manager) SetVolumesInUse(ctx context.Context, volumes []corev1.UniqueVolumeName) error {
	m.mu.Lock()
	m.volumes = slices.Clone(volumes)
	slices.Sort(m.volumes)
	m.volumesGen++
	gen := m.volumesGen
	m.mu.Unlock()
	m.wake.Notify()
	for {
		written := m.written.Changed()
		m.mu.Lock()
		done := m.writtenGen >= gen
		m.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-written:
		case <-ctx.Done():
			return fmt.Errorf("write volumes in use of node %q: %w", m.config.Name, context.Cause(ctx))
		}
	}
}

// Reference returns a reference to the Node as events of its kubelet use it: the name stands for the UID.
func Reference(name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: name, UID: types.UID(name)}
}

// write updates the Node's status on each wake-up and when its timer fires.
func (m *Manager) write(ctx context.Context) error {
	timer := m.deps.Clock.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake.C():
		case <-timer.C():
		}
		resetTimer(timer, m.sync(ctx))
	}
}

func resetTimer(timer clock.Timer, d time.Duration) {
	if !timer.Stop() {
		select {
		case <-timer.C():
		default:
		}
	}
	timer.Reset(d)
}

// sync computes the status, writes it if needed, and returns the time until the next sync.
func (m *Manager) sync(ctx context.Context) time.Duration {
	gen, err := m.observe(ctx)
	var delay time.Duration
	if err == nil {
		delay, err = m.report(ctx, gen)
	}
	switch {
	case errors.Is(err, errNodeDeleted) || apierrors.IsNotFound(err):
		m.deps.Logger.Warn("Node object was deleted; registering it again", "node", m.config.Name)
		err = m.tryRegister(ctx)
	case err != nil && ctx.Err() == nil:
		// The known state of the Node may be the cause; the next attempt starts from that of the API server.
		m.rereadNode(ctx)
	}
	if err != nil {
		m.deps.Logger.Warn("failed to write node status; retrying", "node", m.config.Name, "error", err)
		return m.backoff()
	}
	if m.runtimeErr != nil || len(m.observed.notReady) > 0 {
		return m.backoff()
	}
	m.retry = 0
	if delay > 0 {
		return min(delay, usageInterval)
	}
	return usageInterval
}

// backoff doubles and returns the wait before the next retry.
func (m *Manager) backoff() time.Duration {
	m.retry = min(max(m.retry*2, retryMin), retryMax)
	return m.retry
}

// observe reads what is stale of the runtime and the machine. It returns the generation of volumes that it used.
func (m *Manager) observe(ctx context.Context) (gen int64, err error) {
	now := m.deps.Clock.Now()
	m.mu.Lock()
	runtimeDue := m.runtimeStale || !now.Before(m.nextRuntime)
	imagesDue := m.imagesStale || !now.Before(m.nextImages)
	m.runtimeStale, m.imagesStale = false, false
	gen = m.volumesGen
	m.observed.volumes, m.observed.volumesOK, m.observed.ips = m.volumes, gen > 0, m.ips
	reasons := maps.Clone(m.notReadyReasons)
	m.mu.Unlock()

	if m.observed.info.Cores == 0 {
		if m.observed.info, err = m.deps.Machine.Info(); err != nil {
			return gen, fmt.Errorf("read machine properties: %w", err)
		}
	}
	if m.observed.usage, err = m.deps.Machine.Usage(); err != nil {
		return gen, fmt.Errorf("read machine usage: %w", err)
	}
	m.observed.pressure = m.holdPressure(pressureOf(m.config.Thresholds, m.observed.usage), now)
	if runtimeDue {
		m.refreshRuntime(ctx)
		m.nextRuntime = now.Add(runtimeInterval)
	}
	if imagesDue && m.runtimeErr == nil {
		m.refreshImages(ctx)
		m.nextImages = now.Add(imagesInterval)
	}
	m.observed.notReady = m.notReady(reasons, now)
	if runtimeDue && (m.runtimeErr != nil || len(m.observed.notReady) > 0) {
		m.nextRuntime = now.Add(retryMin) // the timer retries with backoff; events in between do not
	}
	return gen, nil
}

// holdPressure keeps a pressure for a while after its cause is gone.
func (m *Manager) holdPressure(p pressure, now time.Time) pressure {
	for i, set := range []*bool{&p.memory, &p.disk, &p.pid} {
		if *set {
			m.lastPressure[i] = now
		} else if !m.lastPressure[i].IsZero() && now.Sub(m.lastPressure[i]) < pressureHold {
			*set = true
		}
	}
	return p
}

// refreshRuntime reads the runtime's status and version. The previous ones are kept while it is unreachable.
func (m *Manager) refreshRuntime(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	status, err := m.deps.Runtime.Status(ctx, statusRequest)
	var version *runtimeapi.VersionResponse
	if err == nil {
		// It may have been restarted with another version.
		version, err = m.deps.Runtime.Version(ctx, versionRequest)
	}
	m.runtimeErr = err
	if err != nil {
		m.deps.Logger.Warn("failed to read status of container runtime", "error", err)
		return
	}
	m.observed.runtime, m.observed.version = status, version
	m.runtimeSeen = m.deps.Clock.Now()
	m.deps.OnRuntime(status)
}

// refreshImages lists the runtime's images.
func (m *Manager) refreshImages(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	listedAt := m.deps.Clock.Now()
	response, err := m.deps.Runtime.ListImages(ctx, imagesRequest)
	if err != nil {
		m.deps.Logger.Warn("failed to list images for node status", "error", err)
		return
	}
	m.deps.OnImages(response.Images, listedAt)
	m.observed.images = slices.Clone(response.Images)
	if m.observed.images == nil {
		m.observed.images = noImages
	}
}

// notReady returns all reasons for which the node is not ready.
func (m *Manager) notReady(reasons map[string]error, now time.Time) []string {
	var list []string
	switch {
	case m.runtimeSeen.IsZero() && m.runtimeErr != nil:
		list = append(list, "container runtime is down: "+m.runtimeErr.Error())
	case m.runtimeSeen.IsZero():
		list = append(list, "container runtime status check may not have completed yet")
	case m.runtimeErr != nil && now.Sub(m.runtimeSeen) >= runtimeGrace:
		list = append(list, "container runtime is down")
	}
	list = append(list, runtimeReasons(m.observed.runtime)...)
	for _, key := range slices.Sorted(maps.Keys(reasons)) {
		list = append(list, reasons[key].Error())
	}
	return list
}
