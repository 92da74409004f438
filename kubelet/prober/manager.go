package prober

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/prober/probe"
	"github.com/berth-dev/berth/timeline"
)

// Type is the type of a probe; its value is that in events and metrics.
type Type string

// The probe types.
const (
	Startup   Type = "Startup"
	Liveness  Type = "Liveness"
	Readiness Type = "Readiness"
)

// Prober probes a container once. *probe.Prober implements it.
type Prober interface {
	Probe(ctx context.Context, handler corev1.ProbeHandler, target probe.Target, timeout time.Duration) (
		probe.Result, string, error)
}

var _ Prober = (*probe.Prober)(nil)

// Deps are what a Manager needs from others. Prober is required; the rest may be nil.
type Deps struct {
	Prober     Prober
	OnResult   func(Result)          // called for each change of a result; must not block
	Recorder   record.EventRecorder  // gets Unhealthy and ProbeWarning on the Pod, with the container's field path
	Timeline   *timeline.Recorder    // gets StageProbe per container
	Registerer prometheus.Registerer // gets prober_probe_total and prober_probe_duration_seconds
	Clock      clock.Clock
	Logger     *slog.Logger
}

// Container is a running container.
type Container struct {
	Name      string    // in the Pod's spec
	ID        string    // as the runtime knows it, without "containerd://"
	PodIP     string    // where network probes go unless they name a host
	StartedAt time.Time // initialDelaySeconds counts from here
	// Adopted says that the container was running before this kubelet. Its results then start with WasReady and
	// WasStarted, as the Pod's status in the API has them, so that they do not flap when the kubelet restarts.
	Adopted, WasReady, WasStarted bool
}

// Result is a change of a probe's result.
type Result struct {
	PodUID      types.UID
	Container   string
	ContainerID string
	Type        Type
	Passed      bool
	Message     string // why it failed
}

// Failure is a failed liveness or startup probe: the container is killed and handled by its restart policy.
type Failure struct {
	Type    Type // Liveness or Startup
	Message string
	// GraceSeconds is the probe's terminationGracePeriodSeconds; nil means the Pod's own.
	GraceSeconds *int64
}

// Manager runs the probes of all Pods of a node. It is safe for concurrent use.
type Manager struct {
	deps    Deps
	metrics *metrics

	mu      sync.Mutex // guards all below, and every containerProbes
	running context.Context
	stopped bool
	pods    map[types.UID]*podProbes
	byID    map[string]*containerProbes
	workers sync.WaitGroup
}

// podProbes is the state of one Pod, from its first container until RemovePod.
type podProbes struct {
	pod        *corev1.Pod
	containers map[string]*containerProbes // those that run, by name
}

// containerProbes is the state of one container ID.
type containerProbes struct {
	pod         *corev1.Pod
	spec        *corev1.Container
	container   Container
	terminating bool // the Pod terminates: liveness and startup probes have ended
	started     bool
	ready       bool
	failure     *Failure
	span        *timeline.Span
	cancels     map[Type]context.CancelFunc
}

// New returns a Manager. It probes nothing before Start.
func New(deps Deps) (*Manager, error) {
	if deps.Prober == nil {
		return nil, errors.New("prober: Deps.Prober is required")
	}
	if deps.OnResult == nil {
		deps.OnResult = func(Result) {}
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	m := newMetrics()
	if deps.Registerer != nil {
		if err := m.register(deps.Registerer); err != nil {
			return nil, err
		}
	}
	return &Manager{
		deps:    deps,
		metrics: m,
		pods:    make(map[types.UID]*podProbes),
		byID:    make(map[string]*containerProbes),
	}, nil
}

// Start runs the probes until ctx ends and all workers have returned. It is called once.
func (m *Manager) Start(ctx context.Context) error {
	m.startAll(ctx)
	<-ctx.Done()
	m.mu.Lock()
	m.stopped = true
	m.mu.Unlock()
	m.workers.Wait()
	return nil
}

// startAll starts the probes of containers that were started before Start.
func (m *Manager) startAll(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running = ctx
	for _, cp := range m.byID {
		m.startWorkers(cp)
	}
}

// ContainerStarted starts the probes of a running container. It is called as soon as StartContainer has returned;
// another call with the same ID only updates the address. A new ID with the same name replaces the old one. A container
// without probes is started and ready.
func (m *Manager) ContainerStarted(pod *corev1.Pod, c Container) {
	spec, _ := podutil.FindContainer(&pod.Spec, c.Name)
	if spec == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.pods[pod.UID]
	if known == nil {
		known = &podProbes{pod: pod, containers: make(map[string]*containerProbes)}
		m.pods[pod.UID] = known
	}
	if old := known.containers[c.Name]; old != nil {
		if old.container.ID == c.ID {
			old.container.PodIP = c.PodIP
			return
		}
		m.forget(old)
	}
	cp := &containerProbes{pod: pod, spec: spec, container: c, cancels: make(map[Type]context.CancelFunc)}
	cp.started = spec.StartupProbe == nil || (c.Adopted && c.WasStarted)
	cp.ready = cp.started && (spec.ReadinessProbe == nil || (c.Adopted && c.WasReady))
	if !cp.ready {
		cp.span = m.deps.Timeline.Begin(timeline.PodRef(pod), "kubelet", timeline.StageProbe, c.Name)
	}
	known.containers[c.Name] = cp
	m.byID[c.ID] = cp
	m.startWorkers(cp)
}

// ContainerStopped ends the probes of a container ID and drops its results.
func (m *Manager) ContainerStopped(podUID types.UID, containerID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if cp := m.byID[containerID]; cp != nil && cp.pod.UID == podUID {
		m.forget(cp)
		delete(m.pods[podUID].containers, cp.container.Name)
	}
}

// StopLivenessAndStartup ends these probes of all containers of a Pod, sidecars included, with success: a Pod that
// terminates is not killed for being slow. Readiness probes continue.
func (m *Manager) StopLivenessAndStartup(podUID types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.pods[podUID]
	if known == nil {
		return
	}
	for _, cp := range known.containers {
		cp.terminating = true
		cp.failure = nil
		m.cancel(cp, Liveness)
		m.cancel(cp, Startup)
		if !cp.started {
			m.setStarted(cp)
		}
	}
}

// RemovePod ends all probes of a Pod and drops its results and metrics.
func (m *Manager) RemovePod(podUID types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.pods[podUID]
	if known == nil {
		return
	}
	for _, cp := range known.containers {
		m.forget(cp)
	}
	delete(m.pods, podUID)
	for c := range podutil.Containers(&known.pod.Spec) { // most have ended before their Pod is removed
		m.metrics.forget(known.pod, c.Name)
	}
}

// Ready reports whether the container is ready, and whether it is known.
func (m *Manager) Ready(containerID string) (ready, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	cp := m.byID[containerID]
	return cp != nil && cp.ready, cp != nil
}

// Started reports whether the container's startup probe has passed, or there is none, and whether the container is
// known.
func (m *Manager) Started(containerID string) (started, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	cp := m.byID[containerID]
	return cp != nil && cp.started, cp != nil
}

// Failed returns why the container is to be killed for its liveness or startup probe, if it is. The result stays until
// the container ID is gone.
func (m *Manager) Failed(containerID string) (Failure, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	cp := m.byID[containerID]
	if cp == nil || cp.failure == nil {
		return Failure{}, false
	}
	return *cp.failure, true
}

// startWorkers starts the workers that the container should have now. The caller holds mu.
func (m *Manager) startWorkers(cp *containerProbes) {
	if m.running == nil || m.stopped || cp.failure != nil {
		return
	}
	if !cp.started {
		m.startWorker(cp, Startup, cp.spec.StartupProbe)
		return
	}
	if !cp.terminating {
		m.startWorker(cp, Liveness, cp.spec.LivenessProbe)
	}
	m.startWorker(cp, Readiness, cp.spec.ReadinessProbe)
}

func (m *Manager) startWorker(cp *containerProbes, kind Type, spec *corev1.Probe) {
	if spec == nil || cp.cancels[kind] != nil {
		return
	}
	ctx, cancel := context.WithCancel(m.running)
	cp.cancels[kind] = cancel
	w := newWorker(m, cp, kind, spec)
	m.workers.Go(contain.Loop(ctx, "prober.run", podutil.Name(cp.pod), w.run))
}

// cancel ends one worker, which stays in the map so that startWorkers does not start it again. The caller holds mu.
func (m *Manager) cancel(cp *containerProbes, kind Type) {
	if stop := cp.cancels[kind]; stop != nil {
		stop()
	}
}

// forget ends a container's workers and drops its results. The caller holds mu.
func (m *Manager) forget(cp *containerProbes) {
	for _, stop := range cp.cancels {
		stop()
	}
	if cp.span != nil {
		cp.span.End(errors.New("the container ended before its probes passed"))
		cp.span = nil
	}
	if m.byID[cp.container.ID] == cp {
		delete(m.byID, cp.container.ID)
	}
}

// setStarted records that the startup probe has passed, and starts the other probes. The caller holds mu.
func (m *Manager) setStarted(cp *containerProbes) {
	cp.started = true
	if cp.spec.ReadinessProbe == nil {
		m.setReady(cp, true)
	}
	m.startWorkers(cp)
}

// setReady records a readiness result. The caller holds mu.
func (m *Manager) setReady(cp *containerProbes, ready bool) {
	cp.ready = ready
	if ready && cp.span != nil {
		cp.span.End(nil)
		cp.span = nil
	}
}
