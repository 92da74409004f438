package resize

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/reconcile"
)

const (
	// retryMin is the delay after a failed call; it doubles with each failure in a row, up to retryMax.
	retryMin, retryMax = time.Second, 5 * time.Minute
	// infeasibleRetryMin and infeasibleRetryMax are the same for requests that are infeasible, or not supported. The
	// cause may be something that is not watched.
	infeasibleRetryMin, infeasibleRetryMax = 5 * time.Minute, time.Hour
)

// backoff delays the retry for a claim and the size that it requests. Our own writes change the claim, too, and must not end
// the backoff; a request for another size does.
type backoff struct {
	uid      types.UID
	want     string
	failures int
	until    time.Time
}

// backoffLeft returns how long the claim still has to wait.
func (r *Resizer) backoffLeft(key reconcile.Request, claim *corev1.PersistentVolumeClaim) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, ok := r.backoffs[key]
	if !ok || !p.matches(claim) {
		return 0
	}
	return p.until.Sub(r.deps.Clock.Now())
}

func (p backoff) matches(claim *corev1.PersistentVolumeClaim) bool {
	want := requestedSize(claim)
	return p.uid == claim.UID && p.want == want.String()
}

// recordFailedTry counts a failure and returns how long the claim has to wait.
func (r *Resizer) recordFailedTry(key reconcile.Request, claim *corev1.PersistentVolumeClaim, infeasible bool) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.backoffs[key]
	if !p.matches(claim) {
		want := requestedSize(claim)
		p = backoff{uid: claim.UID, want: want.String()}
	}
	least, most := retryMin, retryMax
	if infeasible {
		least, most = infeasibleRetryMin, infeasibleRetryMax
	}
	wait := min(least<<min(p.failures, 16), most)
	p.failures++
	p.until = r.deps.Clock.Now().Add(wait)
	r.backoffs[key] = p
	return wait
}

// RetryNow retries all expansions that wait for their backoff at once, because the driver is back.
func (r *Resizer) RetryNow() {
	r.mu.Lock()
	waiting := slices.Collect(maps.Keys(r.backoffs))
	clear(r.backoffs)
	r.mu.Unlock()
	r.runner.Enqueue(waiting...)
	r.runner.RetryFailed()
}

// succeeded forgets the failures of a claim.
func (r *Resizer) succeeded(key reconcile.Request, volume string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.backoffs, key)
	delete(r.waitingForDetach, volume)
}

// forget drops the state of a claim that is deleted or needs no work.
func (r *Resizer) forget(key reconcile.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.backoffs, key)
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
