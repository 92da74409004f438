package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// runtimeInterval is how often the status of a healthy runtime is read: the CRI has no event for changes of its
	// network condition.
	runtimeInterval = 30 * time.Second
	// imagesInterval is how often the images are listed without a call of ImagesChanged.
	imagesInterval = 5 * time.Minute
	// instanceInterval is how often a cloud provider is asked for the machine's addresses: it has no event for them.
	instanceInterval = 5 * time.Minute
	// runtimeGrace is how long the runtime may be unreachable (a restart of containerd) before the node is not ready.
	runtimeGrace = 30 * time.Second
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
	events     events
	wake       wakeup.Signal // set when there may be something to write
	registered chan struct{} // closed when the Node exists
	volumes    volumesInUse

	// The fields below are used by the goroutine of the status writer only.
	observer  observer
	lastWrite lastWrite
	retry     time.Duration
	conflict  statusConflict

	mu        sync.Mutex // guards all below
	node      *corev1.Node
	deleted   bool // the Node was deleted in the API server
	changes   changes
	resources resources
}

// lastWrite is the last write of the status.
type lastWrite struct {
	at time.Time // of the last one that succeeded
	// unsure is set if it failed: the API server may have stored it, or the known state of the Node is the cause.
	unsure bool
}

// changes are what the calls of a Manager's methods leave to the status writer.
type changes struct {
	ips             []net.IP
	port            int32
	runtimeStale    bool
	imagesStale     bool
	notReadyReasons map[string]error // by key, see SetNotReady
}

// resources are the node's capacity and what Pods may use of it, nil until they are read.
type resources struct{ capacity, allocatable corev1.ResourceList }

// New returns a Manager.
func New(deps Deps, config Config) (*Manager, error) {
	if err := errors.Join(config.complete(), deps.complete()); err != nil {
		return nil, err
	}
	m := &Manager{
		config:     config,
		deps:       deps,
		events:     events{recorder: deps.Recorder, name: config.Name, startup: startup{report: deps.OnStartup}},
		wake:       wakeup.NewSignal(),
		registered: make(chan struct{}),
		changes: changes{
			ips: config.IPs, port: config.Port, runtimeStale: true, imagesStale: true, notReadyReasons: make(map[string]error),
		},
	}
	m.observer = observer{config: &m.config, deps: &m.deps}
	return m, nil
}

// Start registers the Node and manages it until ctx ends. It must be called once.
func (m *Manager) Start(ctx context.Context) error {
	m.events.record(corev1.EventTypeNormal, "Starting", "Starting kubelet.")
	if err := m.register(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	close(m.registered)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(contain.Func("node.Start", "", func() error { return m.watch(ctx) }))
	group.Go(contain.Func("node.Start", "", func() error { return m.renewLease(ctx) }))
	group.Go(contain.Func("node.Start", "", func() error { return m.write(ctx) }))
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
	if m.resources.capacity == nil {
		info, err := m.deps.Machine.Info()
		if err != nil {
			return nil, nil, fmt.Errorf("read machine resources: %w", err)
		}
		usage, err := m.deps.Machine.Usage()
		if err != nil {
			return nil, nil, fmt.Errorf("read machine resources: %w", err)
		}
		m.resources.capacity, m.resources.allocatable = nodeResources(&m.config, info, usage)
	}
	return m.resources.capacity, m.resources.allocatable, nil
}

// RuntimeChanged must be called when the runtime was connected or lost, or its network changed. The Manager then reads
// the runtime's status.
func (m *Manager) RuntimeChanged() {
	m.mu.Lock()
	m.changes.runtimeStale = true
	m.mu.Unlock()
	m.wake.Notify()
}

// PressureChanged must be called when Deps.Pressure returns other conditions.
func (m *Manager) PressureChanged() { m.wake.Notify() }

// DevicesChanged must be called when Deps.Devices returns others than before.
func (m *Manager) DevicesChanged() { m.wake.Notify() }

// ImagesChanged must be called when an image was pulled or removed.
func (m *Manager) ImagesChanged() {
	m.mu.Lock()
	m.changes.imagesStale = true
	m.mu.Unlock()
	m.wake.Notify()
}

// SetIPs sets the node's addresses, the primary one first.
func (m *Manager) SetIPs(ips []net.IP) {
	m.mu.Lock()
	m.changes.ips = ips
	m.mu.Unlock()
	m.wake.Notify()
}

// SetPort sets the port of the node's HTTPS server, which the API server connects to.
func (m *Manager) SetPort(port int32) {
	m.mu.Lock()
	m.changes.port = port
	m.mu.Unlock()
	m.wake.Notify()
}

// SetNotReady makes the node not ready for a reason identified by key, until it is called with nil for the same key.
func (m *Manager) SetNotReady(key string, reason error) {
	m.mu.Lock()
	if reason == nil {
		delete(m.changes.notReadyReasons, key)
	} else {
		m.changes.notReadyReasons[key] = reason
	}
	m.mu.Unlock()
	m.wake.Notify()
}

// SetVolumesInUse sets the attachable volumes in use on the node and returns when the API server has stored them, or
// when ctx ends. A volume must be reported as in use before it is used and until after it is released: only then the
// attach/detach controller does not detach it too early. Until the first call the Node's own list is kept.
func (m *Manager) SetVolumesInUse(ctx context.Context, volumes []corev1.UniqueVolumeName) error {
	gen := m.volumes.set(volumes)
	m.wake.Notify()
	if err := m.volumes.waitWritten(ctx, gen); err != nil {
		return fmt.Errorf("write volumes in use of node %q: %w", m.config.Name, err)
	}
	return nil
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
	}
	if err != nil {
		m.deps.Logger.Warn("failed to write node status; retrying", "node", m.config.Name, "error", err)
		return m.backoff()
	}
	if m.observer.unhealthy() {
		return m.backoff()
	}
	m.retry = 0
	if delay > 0 {
		return min(delay, m.config.UpdateInterval)
	}
	return m.config.UpdateInterval
}

// backoff doubles and returns the wait before the next retry.
func (m *Manager) backoff() time.Duration {
	m.retry = min(max(m.retry*2, retryMin), retryMax)
	return m.retry
}

// observe updates what the status is computed from. It returns the generation of volumes that it used.
func (m *Manager) observe(ctx context.Context) (gen int64, err error) {
	m.mu.Lock()
	changes := m.changes
	changes.notReadyReasons = maps.Clone(m.changes.notReadyReasons)
	m.changes.runtimeStale, m.changes.imagesStale = false, false
	m.mu.Unlock()
	volumes, gen := m.volumes.latest()
	m.observer.observed.volumes, m.observer.observed.volumesOK = volumes, gen > 0
	return gen, m.observer.observe(ctx, &m.config, changes)
}
