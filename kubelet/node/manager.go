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
)

const (
	// usageInterval is how often memory, disk and process IDs are looked at: the kernel has no event for them that
	// works everywhere.
	usageInterval = 10 * time.Second
	// runtimeInterval is how often the runtime is asked for its state while all is well: CRI has no event for its
	// network becoming ready or not.
	runtimeInterval = 30 * time.Second
	// imagesInterval is the net under ImagesChanged.
	imagesInterval = 5 * time.Minute
	// runtimeGrace is how long the runtime may be away (a restart of containerd) before the node is not ready.
	runtimeGrace = 30 * time.Second
	// pressureHold is how long a pressure condition outlives its cause, so that it does not flap.
	pressureHold = 5 * time.Minute
	// callTimeout bounds one question to the runtime.
	callTimeout = 10 * time.Second
	// retryMin and retryMax bound the waits before something that failed is tried again.
	retryMin = 100 * time.Millisecond
	retryMax = 5 * time.Second
)

// errNodeDeleted says that the Node object was deleted.
var errNodeDeleted = errors.New("the node object was deleted")

// Manager keeps the Node object. It is safe for concurrent use.
type Manager struct {
	config     Config
	deps       Deps
	wake       chan struct{} // has a value when there may be something to write
	registered chan struct{} // closed when the Node exists

	// The writer's own, not shared.
	seen           observed
	runtimeSeen    time.Time // when the runtime last answered; zero: never
	runtimeErr     error
	nextRuntime    time.Time
	nextImages     time.Time
	lastPressure   [3]time.Time // memory, disk, pid: when the pressure was last there
	reported       time.Time    // when the status was last written
	retry          time.Duration
	rebootReported bool
	conflict       statusConflict

	mu              sync.Mutex // guards all below
	node            *corev1.Node
	deleted         bool // node was deleted in the API server
	cordoned        bool // as was last told
	ips             []net.IP
	runtimeStale    bool
	imagesStale     bool
	notReadyReasons map[string]error // by key, see SetNotReady
	volumes         []corev1.UniqueVolumeName
	volumesGen      int64 // counts SetVolumesInUse; 0: never called
	writtenGen      int64
	written         chan struct{} // closed and replaced when writtenGen grows
	capacity        corev1.ResourceList
	allocatable     corev1.ResourceList
}

// New makes a Manager.
func New(deps Deps, config Config) (*Manager, error) {
	if err := errors.Join(config.validate(), deps.validate()); err != nil {
		return nil, err
	}
	return &Manager{
		config:          config,
		deps:            deps,
		ips:             config.IPs,
		wake:            make(chan struct{}, 1),
		registered:      make(chan struct{}),
		runtimeStale:    true,
		imagesStale:     true,
		notReadyReasons: make(map[string]error),
		written:         make(chan struct{}),
	}, nil
}

// Start registers the Node and keeps it until ctx ends. It is called once.
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

// Registered is closed when the Node object exists in the API server.
func (m *Manager) Registered() <-chan struct{} { return m.registered }

// Node is the newest state of the Node object that the API server told, nil before registration. It must not be
// changed.
func (m *Manager) Node() *corev1.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.node
}

// Resources are what the node has and what of it Pods may take. They are read from the machine at the first call
// and need no API server. The lists must not be changed.
func (m *Manager) Resources() (capacity, allocatable corev1.ResourceList, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.capacity == nil {
		info, err := m.deps.Machine.Info()
		if err != nil {
			return nil, nil, fmt.Errorf("read the machine's resources: %w", err)
		}
		usage, err := m.deps.Machine.Usage()
		if err != nil {
			return nil, nil, fmt.Errorf("read the machine's resources: %w", err)
		}
		m.capacity, m.allocatable = nodeResources(&m.config, info, usage)
	}
	return m.capacity, m.allocatable, nil
}

// RuntimeChanged says that the runtime was connected to or lost, or that its network changed: it is asked anew.
func (m *Manager) RuntimeChanged() {
	m.mu.Lock()
	m.runtimeStale = true
	m.mu.Unlock()
	m.poke()
}

// ImagesChanged says that an image was pulled or removed.
func (m *Manager) ImagesChanged() {
	m.mu.Lock()
	m.imagesStale = true
	m.mu.Unlock()
	m.poke()
}

// SetIPs says that the node has other addresses, the primary one first.
func (m *Manager) SetIPs(ips []net.IP) {
	m.mu.Lock()
	m.ips = ips
	m.mu.Unlock()
	m.poke()
}

// SetNotReady makes the node not ready for a reason of the caller's, named by key, until it is called with nil for
// the same key.
func (m *Manager) SetNotReady(key string, reason error) {
	m.mu.Lock()
	if reason == nil {
		delete(m.notReadyReasons, key)
	} else {
		m.notReadyReasons[key] = reason
	}
	m.mu.Unlock()
	m.poke()
}

// SetVolumesInUse says which attachable volumes are in use on the node and returns when the API server knows, or
// when ctx ends. A volume must be known as in use before it is used, and until after it is released; only then can
// the attach/detach controller not take it away. Until the first call the Node's own list stands.
func (m *Manager) SetVolumesInUse(ctx context.Context, volumes []corev1.UniqueVolumeName) error {
	m.mu.Lock()
	m.volumes = slices.Clone(volumes)
	slices.Sort(m.volumes)
	m.volumesGen++
	gen := m.volumesGen
	m.mu.Unlock()
	m.poke()
	for {
		m.mu.Lock()
		done, written := m.writtenGen >= gen, m.written
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

// poke wakes the writer.
func (m *Manager) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Reference is the Node as events of its node agent name it: its name stands for the UID.
func Reference(name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: name, UID: types.UID(name)}
}

// write brings the Node's status up to date each time it is woken, and when its timer says so.
func (m *Manager) write(ctx context.Context) error {
	timer := m.deps.Clock.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
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

// sync computes the status, writes it if need be, and tells after what time to come again unasked.
func (m *Manager) sync(ctx context.Context) time.Duration {
	gen, err := m.observe(ctx)
	var delay time.Duration
	if err == nil {
		delay, err = m.report(ctx, gen)
	}
	switch {
	case errors.Is(err, errNodeDeleted) || apierrors.IsNotFound(err):
		m.deps.Logger.Warn("the Node object is gone: registering again", "node", m.config.Name)
		err = m.tryRegister(ctx)
	case err != nil && ctx.Err() == nil:
		// What we believe of the Node may be the cause; the next try starts from what the API server has.
		m.rereadNode(ctx)
	}
	if err != nil {
		m.deps.Logger.Warn("node status not written", "node", m.config.Name, "error", err)
		return m.backoff()
	}
	if m.runtimeErr != nil || len(m.seen.notReady) > 0 {
		return m.backoff()
	}
	m.retry = 0
	if delay > 0 {
		return min(delay, usageInterval)
	}
	return usageInterval
}

// backoff doubles the wait before the next try.
func (m *Manager) backoff() time.Duration {
	m.retry = min(max(m.retry*2, retryMin), retryMax)
	return m.retry
}

// observe reads what is stale of the runtime and the machine. It returns the generation of volumes that went in.
func (m *Manager) observe(ctx context.Context) (gen int64, err error) {
	now := m.deps.Clock.Now()
	m.mu.Lock()
	runtimeDue := m.runtimeStale || !now.Before(m.nextRuntime)
	imagesDue := m.imagesStale || !now.Before(m.nextImages)
	m.runtimeStale, m.imagesStale = false, false
	gen = m.volumesGen
	m.seen.volumes, m.seen.volumesOK, m.seen.ips = m.volumes, gen > 0, m.ips
	reasons := maps.Clone(m.notReadyReasons)
	m.mu.Unlock()

	if m.seen.info.Cores == 0 {
		if m.seen.info, err = m.deps.Machine.Info(); err != nil {
			return gen, fmt.Errorf("read the machine's facts: %w", err)
		}
	}
	if m.seen.usage, err = m.deps.Machine.Usage(); err != nil {
		return gen, fmt.Errorf("read the machine's usage: %w", err)
	}
	m.seen.pressure = m.holdPressure(pressureOf(m.config.Thresholds, m.seen.usage), now)
	if runtimeDue {
		m.refreshRuntime(ctx)
		m.nextRuntime = now.Add(runtimeInterval)
	}
	if imagesDue && m.runtimeErr == nil {
		m.refreshImages(ctx)
		m.nextImages = now.Add(imagesInterval)
	}
	m.seen.notReady = m.notReady(reasons, now)
	if runtimeDue && (m.runtimeErr != nil || len(m.seen.notReady) > 0) {
		m.nextRuntime = now.Add(retryMin) // the timer asks again, at its backoff; not each event that comes meanwhile
	}
	return gen, nil
}

// holdPressure keeps a pressure up for a while after it has gone.
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

// refreshRuntime asks for state and version. The answers of before stand while the runtime is away.
func (m *Manager) refreshRuntime(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	status, err := m.deps.Runtime.Status(ctx, statusRequest)
	var version *runtimeapi.VersionResponse
	if err == nil {
		// It may have been restarted as another version.
		version, err = m.deps.Runtime.Version(ctx, versionRequest)
	}
	m.runtimeErr = err
	if err != nil {
		m.deps.Logger.Warn("ask the container runtime for its state", "error", err)
		return
	}
	m.seen.runtime, m.seen.version = status, version
	m.runtimeSeen = m.deps.Clock.Now()
	m.deps.OnRuntime(status)
}

func (m *Manager) refreshImages(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	listedAt := m.deps.Clock.Now()
	response, err := m.deps.Runtime.ListImages(ctx, imagesRequest)
	if err != nil {
		m.deps.Logger.Warn("list images for the node status", "error", err)
		return
	}
	m.deps.OnImages(response.Images, listedAt)
	m.seen.images = slices.Clone(response.Images)
	if m.seen.images == nil {
		m.seen.images = noImages
	}
}

// notReady tells all that keeps the node from being ready.
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
	list = append(list, runtimeReasons(m.seen.runtime)...)
	for _, key := range slices.Sorted(maps.Keys(reasons)) {
		list = append(list, reasons[key].Error())
	}
	return list
}
