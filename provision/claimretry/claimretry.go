// Package claimretry delays the retries of what a driver failed to do for a claim. A controller's own writes change the claim,
// too, and must not end the delay; a claim that wants something else does.
package claimretry

import (
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/reconcile"
)

const (
	// retryMin is the delay after a failed call; it doubles with each failure in a row, up to retryMax.
	retryMin, retryMax = time.Second, 5 * time.Minute
	// infeasibleRetryMin and infeasibleRetryMax are the same for requests that are infeasible, or not supported. The
	// cause may be something that is not watched.
	infeasibleRetryMin, infeasibleRetryMax = 5 * time.Minute, time.Hour
)

// Delays are those of all claims. They are safe for concurrent use.
type Delays struct {
	clock clock.PassiveClock
	mu    sync.Mutex // guards delays
	// delays has the claims whose last try failed.
	delays map[reconcile.Request]delay
}

// delay is that of one claim and what it wanted.
type delay struct {
	uid      types.UID
	want     string
	failures int
	until    time.Time
}

// New returns Delays without any.
func New(clock clock.PassiveClock) *Delays {
	return &Delays{clock: clock, delays: map[reconcile.Request]delay{}}
}

func (d delay) matches(claim *corev1.PersistentVolumeClaim, want string) bool {
	return d.uid == claim.UID && d.want == want
}

// Left returns how long a claim that wants this still has to wait.
func (d *Delays) Left(key reconcile.Request, claim *corev1.PersistentVolumeClaim, want string) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	have, ok := d.delays[key]
	if !ok || !have.matches(claim, want) {
		return 0
	}
	return have.until.Sub(d.clock.Now())
}

// Failed counts a failure and returns how long the claim has to wait.
func (d *Delays) Failed(key reconcile.Request, claim *corev1.PersistentVolumeClaim, want string, infeasible bool) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := d.delays[key]
	if !next.matches(claim, want) {
		next = delay{uid: claim.UID, want: want}
	}
	least, most := retryMin, retryMax
	if infeasible {
		least, most = infeasibleRetryMin, infeasibleRetryMax
	}
	wait := min(least<<min(next.failures, 16), most)
	next.failures++
	next.until = d.clock.Now().Add(wait)
	d.delays[key] = next
	return wait
}

// Forget ends the claim's delay.
func (d *Delays) Forget(key reconcile.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.delays, key)
}

// ForgetAll ends all delays and returns their claims.
func (d *Delays) ForgetAll() []reconcile.Request {
	d.mu.Lock()
	defer d.mu.Unlock()
	waiting := slices.Collect(maps.Keys(d.delays))
	clear(d.delays)
	return waiting
}
