package resize

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/reconcile"
)

const (
	// retryMin is the pause before a failed call is repeated; it doubles with each failure in a row, up to retryMax.
	retryMin, retryMax = time.Second, 5 * time.Minute
	// infeasibleRetryMin and infeasibleRetryMax are the same for what the driver calls infeasible, or cannot do at all. What has to
	// change for it may lie where nobody looks.
	infeasibleRetryMin, infeasibleRetryMax = 5 * time.Minute, time.Hour
)

// backoff is how long a claim that asks for that size is not tried again. Our own writes are changes of the claim, too, and
// must not end it; another request does.
type backoff struct {
	uid      types.UID
	want     string
	failures int
	until    time.Time
}

// backoffLeft is how long the claim has still to wait.
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

// recordFailedTry notes a failure and returns how long the claim has to wait.
func (r *Resizer) recordFailedTry(key reconcile.Request, claim *corev1.PersistentVolumeClaim, hopeless bool) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.backoffs[key]
	if !p.matches(claim) {
		want := requestedSize(claim)
		p = backoff{uid: claim.UID, want: want.String()}
	}
	least, most := retryMin, retryMax
	if hopeless {
		least, most = infeasibleRetryMin, infeasibleRetryMax
	}
	wait := min(least<<min(p.failures, 16), most)
	p.failures++
	p.until = r.deps.Clock.Now().Add(wait)
	r.backoffs[key] = p
	return wait
}

// succeeded forgets the failures of a claim.
func (r *Resizer) succeeded(key reconcile.Request, volume string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.backoffs, key)
	delete(r.waitingForDetach, volume)
}

// forget forgets all of a claim that is gone, or going.
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

// retryAfterDetach has the claim tried again when its volume is detached.
func (r *Resizer) retryAfterDetach(key reconcile.Request, volume string) {
	r.mu.Lock()
	r.waitingForDetach[volume] = key
	r.mu.Unlock()
	r.detachOnce.Do(func() { close(r.detachWanted) })
}
