package resize

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/reconcile"
)

// wantOf returns what a claim requests, for the delays of retries.
func wantOf(claim *corev1.PersistentVolumeClaim) string {
	want := requestedSize(claim)
	return want.String()
}

// RetryNow retries all expansions that wait for their backoff at once, because the driver is back.
func (r *Resizer) RetryNow() {
	r.runner.Enqueue(r.retries.ForgetAll()...)
	r.runner.RetryFailed()
}

// succeeded forgets the failures of a claim.
func (r *Resizer) succeeded(key reconcile.Request, volume string) {
	r.retries.Forget(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waitingForDetach, volume)
}

// forget drops the state of a claim that is deleted or needs no work.
func (r *Resizer) forget(key reconcile.Request) {
	r.retries.Forget(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.cleaned, key)
	for volume, waiting := range r.waitingForDetach {
		if waiting == key {
			delete(r.waitingForDetach, volume)
		}
	}
}

// retryAfterDetach retries the claim when its volume is detached.
func (r *Resizer) retryAfterDetach(key reconcile.Request, volume string) {
	r.mu.Lock()
	r.waitingForDetach[volume] = key
	r.mu.Unlock()
	r.detachOnce.Do(func() { close(r.detachWanted) })
}
