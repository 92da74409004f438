package nodeshutdown

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/lifecycle"
)

const (
	// minRetry and maxRetry bound the wait before logind is tried again.
	minRetry, maxRetry = time.Second, time.Minute

	rejectedReason  = "NodeShutdown"
	rejectedMessage = "Pod was rejected as the node is shutting down."
	eventReason     = "Shutdown"
	defaultLogind   = "/etc/systemd/logind.conf.d"
	stateFile       = "graceful_node_shutdown_state"
)

// errShuttingDown is why the node is not ready.
var errShuttingDown = errors.New("node is shutting down")

// Terminator ends the Pods of the node.
type Terminator interface {
	// Pods returns the Pods that run on the node.
	Pods() []*corev1.Pod
	// Terminate ends a Pod within at most the grace period, in seconds, as failed because of the shutdown. It calls done once,
	// when the Pod's containers have ended and its volumes are unmounted.
	Terminate(pod *corev1.Pod, grace int64, done func())
}

// Config are the values of a Manager.
type Config struct {
	// Periods are how long the Pods have to end, by priority. At least one is required.
	Periods []Period
	// StateDir is the kubelet's directory, in which the times of the last shutdown are stored.
	StateDir string
	// BusAddress is the address of the system's D-Bus; the standard one if empty.
	BusAddress string
	// LogindDir is the directory of files that change logind's configuration; /etc/systemd/logind.conf.d if empty.
	LogindDir string
}

// Deps are what a Manager works with. Terminator and SetNotReady are required.
type Deps struct {
	Terminator Terminator
	// SetNotReady makes the Node not ready for the reason, until it is called with nil.
	SetNotReady func(reason error)
	// Recorder gets events about Node; both may be nil.
	Recorder   record.EventRecorder
	Node       *corev1.ObjectReference
	Registerer prometheus.Registerer // may be nil
	Clock      clock.Clock
	Logger     *slog.Logger
}

// Manager ends the Pods of a node whose machine shuts down.
type Manager struct {
	config  Config
	deps    Deps
	times   *times
	stopped atomic.Bool // the machine shuts down
}

var _ lifecycle.PodAdmitHandler = (*Manager)(nil)

// New returns a Manager. Start runs it.
func New(deps Deps, config Config) (*Manager, error) {
	switch {
	case deps.Terminator == nil:
		return nil, errors.New("nodeshutdown: Deps.Terminator is required")
	case deps.SetNotReady == nil:
		return nil, errors.New("nodeshutdown: Deps.SetNotReady is required")
	case len(config.Periods) == 0:
		return nil, errors.New("nodeshutdown: Config.Periods is required")
	case config.StateDir == "":
		return nil, errors.New("nodeshutdown: Config.StateDir is required")
	}
	if config.LogindDir == "" {
		config.LogindDir = defaultLogind
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	times, err := newTimes(filepath.Join(config.StateDir, stateFile), deps.Registerer)
	if err != nil {
		return nil, err
	}
	return &Manager{config: config, deps: deps, times: times}, nil
}

// Admit implements lifecycle.PodAdmitHandler: a node that shuts down admits no Pod.
func (m *Manager) Admit(*lifecycle.PodAdmitAttributes) lifecycle.PodAdmitResult {
	if m.stopped.Load() {
		return lifecycle.PodAdmitResult{Reason: rejectedReason, Message: rejectedMessage}
	}
	return lifecycle.PodAdmitResult{Admit: true}
}

// Start holds a lock of logind and handles shutdowns until ctx ends. It connects again when it loses logind.
func (m *Manager) Start(ctx context.Context) error {
	if err := m.times.load(); err != nil {
		m.deps.Logger.Warn("failed to read the times of the last shutdown", "error", err)
	}
	for wait := minRetry; ; wait = min(2*wait, maxRetry) {
		held, err := m.watch(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if held {
			wait = minRetry
		}
		m.deps.Logger.Warn("the machine's shutdown does not wait for Pods; trying again", "after", wait, "error", err)
		timer := m.deps.Clock.NewTimer(wait)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// watch handles shutdowns until ctx or the connection to logind ends. It reports whether it had a lock.
func (m *Manager) watch(ctx context.Context) (held bool, err error) {
	l, err := connect(ctx, m.config.BusAddress)
	if err != nil {
		return false, err
	}
	defer l.conn.Close()
	if err := l.allowDelay(ctx, m.config.LogindDir, total(m.config.Periods)); err != nil {
		return false, err
	}
	lock, err := l.inhibit(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = lock.Close() }() // may be closed already
	m.deps.Logger.Info("the machine's shutdown waits for Pods", "at most", total(m.config.Periods))
	under, err := property[bool](l, "PreparingForShutdown")
	if err != nil {
		return true, err
	}
	if under { // announced while no kubelet ran
		m.shutDown(ctx, lock)
	} else if m.stopped.Load() { // cancelled while logind was away
		m.resume()
	}
	for {
		select {
		case <-ctx.Done():
			return true, nil
		case signal, open := <-l.signals:
			if !open {
				return true, errors.New("logind's D-Bus has closed the connection")
			}
			shutdown, ok := announced(signal)
			switch {
			case !ok || shutdown == under: // it is known already
			case shutdown:
				under = true
				m.shutDown(ctx, lock)
			default:
				under = false
				m.resume()
				again, err := l.inhibit(ctx)
				if err != nil {
					return true, err
				}
				_ = lock.Close() // may be closed already
				lock = again
			}
		}
	}
}

// event records an event about the Node.
func (m *Manager) event(message string) {
	if m.deps.Recorder != nil && m.deps.Node != nil {
		m.deps.Recorder.Event(m.deps.Node, corev1.EventTypeNormal, eventReason, message)
	}
}

// resume makes the node take Pods again.
func (m *Manager) resume() {
	m.event("Shutdown manager detected shutdown cancellation")
	m.deps.Logger.Info("the machine's shutdown was cancelled")
	m.stopped.Store(false)
	m.deps.SetNotReady(nil)
}

// shutDown ends the Pods, group after group, and lets the machine shut down.
func (m *Manager) shutDown(ctx context.Context, lock *os.File) {
	m.stopped.Store(true)
	m.deps.SetNotReady(errShuttingDown)
	m.event("Shutdown manager detected shutdown event")
	m.deps.Logger.Info("the machine shuts down; ending the Pods", "within", total(m.config.Periods))
	began := m.deps.Clock.Now()
	m.record(began, time.Time{})
	for _, group := range groupPods(m.config.Periods, m.deps.Terminator.Pods()) {
		if left := m.end(ctx, group); left > 0 {
			m.deps.Logger.Warn("Pods have not ended in time", "pods", left, "priority", group.Priority, "within", group.Grace)
		}
	}
	m.record(began, m.deps.Clock.Now())
	if err := lock.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		m.deps.Logger.Warn("failed to release the lock that delays the machine's shutdown", "error", err)
	}
	m.deps.Logger.Info("the Pods have ended; the machine may shut down", "took", m.deps.Clock.Since(began))
}

func (m *Manager) record(began, ended time.Time) {
	if err := m.times.store(began, ended); err != nil {
		m.deps.Logger.Warn("failed to store the times of the shutdown", "error", err)
	}
}

// end ends the Pods of a group, and returns how many have not ended within its period.
func (m *Manager) end(ctx context.Context, g group) (left int) {
	done := make(chan struct{}, len(g.pods))
	for _, pod := range g.pods {
		grace := int64(g.Grace / time.Second)
		if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
			grace = min(grace, *own)
		}
		m.deps.Terminator.Terminate(pod, grace, func() { done <- struct{}{} })
	}
	timer := m.deps.Clock.NewTimer(g.Grace)
	defer timer.Stop()
	for left = len(g.pods); left > 0; left-- {
		select {
		case <-done:
		case <-timer.C():
			return left
		case <-ctx.Done():
			return left
		}
	}
	return 0
}

// String returns the periods as messages show them.
func (p Period) String() string { return fmt.Sprintf("%s from priority %d on", p.Grace, p.Priority) }
