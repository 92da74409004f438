package prober

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/reference"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/prober/probe"
)

const (
	reasonUnhealthy = "Unhealthy"
	reasonWarning   = "ProbeWarning"

	// earlyNetworkInterval and earlyExecInterval are the first intervals of early probes. A command costs a process in
	// the container, so it runs less often than a connection.
	earlyNetworkInterval = 20 * time.Millisecond
	earlyExecInterval    = 100 * time.Millisecond

	// maxAttempts is how often a probe that could not be run is repeated before its result is dropped.
	maxAttempts = 3
)

// worker runs one probe of one container ID. Its fields belong to its goroutine.
type worker struct {
	m    *Manager
	cp   *containerProbes
	kind Type
	spec *corev1.Probe

	period, timeout time.Duration
	first           time.Duration // until the first probe
	earlyInterval   time.Duration // until the next early probe; 0 when early probes have ended
	countFrom       time.Time     // failures count from this time on
	lastPassed      bool
	consecutive     int32 // number of equal results in a row
}

// newWorker schedules the first probe. The caller holds the Manager's mu.
func newWorker(m *Manager, cp *containerProbes, kind Type, spec *corev1.Probe) *worker {
	w := &worker{m: m, cp: cp, kind: kind, spec: spec}
	w.period = time.Duration(max(spec.PeriodSeconds, 1)) * time.Second
	w.timeout = time.Duration(max(spec.TimeoutSeconds, 1)) * time.Second
	delay := time.Duration(spec.InitialDelaySeconds) * time.Second
	now := m.deps.Clock.Now()
	early := kind != Liveness && !cp.ready
	if early {
		w.earlyInterval = earlyNetworkInterval
		if spec.Exec != nil {
			w.earlyInterval = earlyExecInterval
		}
	} else if delay == 0 && cp.spec.StartupProbe == nil {
		// An early liveness probe has no benefit, and right after the start it could only fail.
		delay = w.period
	}
	started := cp.container.StartedAt
	if started.After(now) {
		started = now // the clock was set back meanwhile
	}
	due := started.Add(delay)
	if due.Before(now) {
		due = now
	}
	if cp.container.Adopted && !early {
		// After a restart of the kubelet all workers start at once; spread them over their period.
		due = due.Add(spreadOffset(cp.container.ID, kind, w.period))
	}
	w.first = due.Sub(now)
	w.countFrom = due
	if early {
		w.countFrom = due.Add(w.period)
	}
	return w
}

// spreadOffset spreads workers over a period, with the same offset for the same container each time.
func spreadOffset(containerID string, kind Type, period time.Duration) time.Duration {
	h := fnv.New64a()
	_, _ = h.Write([]byte(containerID + "/" + string(kind)))
	return time.Duration(h.Sum64() % uint64(period))
}

func (w *worker) run(ctx context.Context) {
	timer := w.m.deps.Clock.NewTimer(w.first)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
		}
		next, more := w.probeOnce(ctx)
		if !more {
			return
		}
		timer.Reset(next)
	}
}

// probeOnce probes once and returns when to probe again, if at all.
func (w *worker) probeOnce(ctx context.Context) (next time.Duration, more bool) {
	begin := w.m.deps.Clock.Now()
	result, message, err := w.probeWithRetry(ctx)
	counts := w.earlyInterval == 0 || !begin.Before(w.countFrom)
	took := w.m.deps.Clock.Since(begin)
	if !w.observe(ctx, result, err, took) {
		return 0, false
	}
	if err == nil && result != probe.Failure {
		w.earlyInterval = 0
		if result == probe.Warning {
			w.event(reasonWarning, fmt.Sprintf("%s probe warning: %s", w.kind, message))
		}
		return w.remainingPeriod(took), w.countResult(true, "")
	}
	if !counts {
		next = min(w.earlyInterval, max(w.countFrom.Sub(w.m.deps.Clock.Now()), 0))
		w.earlyInterval *= 2
		return next, true
	}
	w.earlyInterval = 0
	if err != nil {
		w.event(reasonUnhealthy, fmt.Sprintf("%s probe errored and resulted in unknown state: %v", w.kind, err))
		return w.remainingPeriod(took), true
	}
	w.event(reasonUnhealthy, fmt.Sprintf("%s probe failed: %s", w.kind, message))
	return w.remainingPeriod(took), w.countResult(false, message)
}

// observe adds a result to the metrics. It returns false for that of a container that is being stopped, which does not count:
// its Pod's series may be removed already.
func (w *worker) observe(ctx context.Context, result probe.Result, err error, took time.Duration) bool {
	w.m.mu.Lock() // workers are cancelled under it
	defer w.m.mu.Unlock()
	if ctx.Err() != nil {
		return false
	}
	w.m.metrics.observe(w.cp.pod, w.cp.spec.Name, w.kind, result, err, took)
	return true
}

// remainingPeriod returns what is left of the period after a probe, so that a slow probe does not lengthen it.
func (w *worker) remainingPeriod(took time.Duration) time.Duration { return max(w.period-took, 0) }

// probeWithRetry probes once, and repeats a probe that could not be run at once.
func (w *worker) probeWithRetry(ctx context.Context) (result probe.Result, message string, err error) {
	w.m.mu.Lock()
	target := probe.Target{
		ContainerID: w.cp.container.ID,
		Container:   w.cp.spec,
		PodIP:       w.cp.container.PodIP,
	}
	w.m.mu.Unlock()
	for range maxAttempts {
		result, message, err = w.m.deps.Prober.Probe(ctx, w.spec.ProbeHandler, target, w.timeout)
		if err == nil || ctx.Err() != nil {
			break
		}
	}
	return result, message, err
}

// countResult counts a result, applies it when its threshold is reached, and reports whether to continue.
func (w *worker) countResult(passed bool, message string) (more bool) {
	if w.consecutive == 0 || w.lastPassed != passed {
		w.lastPassed, w.consecutive = passed, 0
	}
	w.consecutive++
	threshold := w.spec.FailureThreshold
	if passed {
		threshold = w.spec.SuccessThreshold
	}
	if w.consecutive < threshold {
		return true
	}
	changed, more := w.applyResult(passed, message)
	if changed {
		w.m.deps.Logger.Debug("probe result changed", "pod", w.cp.pod.Namespace+"/"+w.cp.pod.Name, "uid", w.cp.pod.UID,
			"container", w.cp.spec.Name, "probe", w.kind, "passed", passed, "message", message)
		w.m.deps.OnResult(Result{
			PodUID: w.cp.pod.UID, Container: w.cp.spec.Name, ContainerID: w.cp.container.ID,
			Type: w.kind, Passed: passed, Message: message,
		})
	}
	return more
}

// applyResult updates the container's state with a result.
func (w *worker) applyResult(passed bool, message string) (changed, more bool) {
	m, cp := w.m, w.cp
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byID[cp.container.ID] != cp {
		return false, false
	}
	switch {
	case w.kind == Readiness:
		changed = cp.ready != passed
		m.setReady(cp, passed)
		return changed, true
	case cp.terminating:
		return false, false
	case !passed:
		// The container is about to be killed. Until it has ended, which its preStop hook may delay, its readiness probe goes on.
		cp.failure = &Failure{Type: w.kind, Message: message, GraceSeconds: w.spec.TerminationGracePeriodSeconds}
		return true, false
	case w.kind == Startup:
		m.setStarted(cp)
		return true, false
	}
	return false, true
}

// event sends an event about the container's field of the Pod.
func (w *worker) event(reason, message string) {
	if w.m.deps.Recorder == nil {
		return
	}
	field := "spec.containers{" + w.cp.spec.Name + "}"
	if _, kind := podutil.FindContainer(&w.cp.pod.Spec, w.cp.spec.Name); kind == podutil.Init {
		field = "spec.initContainers{" + w.cp.spec.Name + "}"
	}
	ref, err := reference.GetPartialReference(scheme.Scheme, w.cp.pod, field)
	if err != nil {
		w.m.deps.Logger.Error("failed to build the event's reference to the Pod", "pod", w.cp.pod.Namespace+"/"+w.cp.pod.Name, "error", err)
		return
	}
	w.m.deps.Recorder.Event(ref, corev1.EventTypeWarning, reason, message)
}
