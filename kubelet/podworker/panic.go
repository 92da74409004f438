package podworker

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/status"
)

// ReasonPanicked is the reason of the event of a Pod whose handling panicked, and of the status of one that failed by it.
const ReasonPanicked = "KubeletPanicked"

const (
	// minQuarantine and maxQuarantine bound how long nothing is done for a Pod after a panic. It doubles with each.
	minQuarantine = 10 * time.Second
	maxQuarantine = 5 * time.Minute
	// maxPanics is the number of panics after which a Pod fails; older ones than panicMemory do not count.
	maxPanics   = 3
	panicMemory = 30 * time.Minute
)

// object returns the Pod's name for logs.
func (w *worker) object() string {
	if w.pod == nil {
		return string(w.uid)
	}
	return podutil.Name(w.pod)
}

// containedSync syncs once, unless the Pod is in quarantine. A panic affects no other Pod.
func (w *worker) containedSync(ctx context.Context) (gone bool) {
	if w.m.deps.Clock.Now().Before(w.quarantinedUntil) {
		w.wakeAt(w.quarantinedUntil)
		return false
	}
	err := contain.Do("podworker.sync", w.object(), func() error {
		gone = w.syncOnce(ctx)
		return nil
	})
	if err != nil {
		w.panicked(err)
		return false
	}
	return gone
}

// panicked records that a step of this Pod panicked: nothing is done for the Pod for a while, and it fails after three.
func (w *worker) panicked(err error) {
	now := w.m.deps.Clock.Now()
	if now.Sub(w.lastPanic) > panicMemory {
		w.panics = 0
	}
	w.panics++
	w.lastPanic = now
	delay := min(minQuarantine<<min(w.panics-1, 5), maxQuarantine)
	w.quarantinedUntil = now.Add(delay)
	w.wakeAt(w.quarantinedUntil)
	w.invalidate()
	if w.pod == nil {
		return
	}
	message := fmt.Sprintf("The kubelet panicked while it handled this Pod (%d of %d): %v; the kubelet's log has the stack", w.panics, maxPanics, err)
	w.m.deps.Recorder.Event(w.pod, corev1.EventTypeWarning, ReasonPanicked, message)
	if w.panics >= maxPanics && w.failure == nil && w.state == syncing {
		w.failure = &status.Failure{Reason: ReasonPanicked, Message: message}
		w.quarantinedUntil = now // it ends at once
	}
}
