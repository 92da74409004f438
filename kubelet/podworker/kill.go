package podworker

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/status"
)

// KillRequest is how Manager.Kill ends a Pod.
type KillRequest struct {
	// Grace, in seconds, may shorten the Pod's time to end.
	Grace *int64
	// Status returns the status that the Pod ends with, from its state in the runtime: its phase if that is terminal, else
	// Failed, its reason, message and conditions. A nil Status is a Pod that has failed with the reason Killed. It is called
	// in the worker's goroutine and must not block.
	Status func(pod *corev1.Pod, runtime *container.PodStatus) corev1.PodStatus
	// ByExitCodes makes the phase Succeeded if all containers end with exit code 0.
	ByExitCodes bool
	// Done, which must not block, is called once: when no container of the Pod runs any more, or with the error of an
	// attempt to stop them. After an error the Pod is still being stopped.
	Done func(error)
	// Released, which must not block, is called once, if set: when the Pod's volumes are unmounted, too.
	Released func()
}

// failure returns why the Pod ends.
func (r *KillRequest) failure(pod *corev1.Pod, runtime *container.PodStatus) *status.Failure {
	if r.Status == nil {
		return &status.Failure{Reason: "Killed", Message: "The pod was killed by the node"}
	}
	wanted := r.Status(pod, runtime)
	final := &status.Final{Phase: wanted.Phase, Conditions: wanted.Conditions}
	if !podutil.IsTerminal(&wanted) {
		final.Phase = corev1.PodFailed
	}
	return &status.Failure{Reason: wanted.Reason, Message: wanted.Message, Final: final, ByExitCodes: r.ByExitCodes}
}

// Kill ends a Pod, and reports whether it has a worker. A Pod that is ending already keeps its status.
func (m *Manager) Kill(uid types.UID, request KillRequest) bool {
	return m.postTo(uid, func(w *worker) { w.kills = append(w.kills, request) })
}

// OnSynced calls done when the operations of the Pod's next sync have ended, with the errors of those that failed and why
// containers wait. It reports whether the Pod has a worker; done is not called if the kubelet ends before.
func (m *Manager) OnSynced(uid types.UID, done func(error)) bool {
	return m.postTo(uid, func(w *worker) {
		w.syncWaiters, w.syncErrors = append(w.syncWaiters, done), nil
		w.retries.clear()
	})
}

// postTo posts to a Pod's worker, and reports whether there is one. A worker that is being removed handles it, too.
func (m *Manager) postTo(uid types.UID, fn func(*worker)) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.workers[uid]
	if w != nil {
		w.post(func() { fn(w) })
	}
	return w != nil
}

// handleKills makes the Pod end for the pending requests. The runtime's state is known.
func (w *worker) handleKills() {
	for _, request := range w.kills {
		if w.failure == nil && w.state == syncing {
			w.failure = request.failure(w.pod, w.runtime)
		}
		if request.Grace != nil && (w.graceOverride == nil || *request.Grace < *w.graceOverride) {
			w.graceOverride = request.Grace
		}
		if request.Done != nil {
			w.killWaiters = append(w.killWaiters, request.Done)
		}
		if request.Released != nil {
			w.releaseWaiters = append(w.releaseWaiters, request.Released)
		}
	}
	w.kills = nil
	if w.stopped {
		w.notifyKilled(nil)
	}
	if w.cleanedUp {
		w.notifyReleased()
	}
}

// notifyReleased calls those who wait until the Pod uses no volume any more.
func (w *worker) notifyReleased() {
	for _, done := range w.releaseWaiters {
		done()
	}
	w.releaseWaiters = nil
}

// notifyKilled calls those who wait for the end of the Pod's containers.
func (w *worker) notifyKilled(err error) {
	for _, done := range w.killWaiters {
		done(err)
	}
	w.killWaiters = nil
}

// notifySynced calls those who wait for a sync, if nothing is under way.
func (w *worker) notifySynced() {
	if len(w.syncWaiters) == 0 || len(w.ops) > 0 || w.state == syncing && w.needsRead() {
		return
	}
	errs := w.syncErrors
	if w.rejected != nil {
		errs = append(errs, failureError(w.rejected))
	}
	for _, name := range slices.Sorted(maps.Keys(w.waiting)) {
		errs = append(errs, fmt.Errorf("container %q is waiting: %s: %s", name, w.waiting[name].Reason, w.waiting[name].Message))
	}
	for _, done := range w.syncWaiters {
		done(errors.Join(errs...))
	}
	w.syncWaiters, w.syncErrors = nil, nil
}

// notifyGone calls all who wait for a Pod of which nothing is left.
func (w *worker) notifyGone() {
	for _, request := range w.kills {
		if request.Done != nil {
			w.killWaiters = append(w.killWaiters, request.Done)
		}
		if request.Released != nil {
			w.releaseWaiters = append(w.releaseWaiters, request.Released)
		}
	}
	w.notifyKilled(nil)
	w.notifyReleased()
	w.notifyEvicted()
	for _, done := range w.syncWaiters {
		done(nil)
	}
	for _, waiting := range w.exitWaiters {
		for _, ended := range waiting {
			close(ended)
		}
	}
}
