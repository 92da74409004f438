package resize

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/provision/claimwork"
	"github.com/berth-dev/berth/reconcile"
)

// timelineOwner is the owner of the stages in timelines.
const timelineOwner = "resizer"

// Capabilities are a driver's capabilities of volume expansion.
type Capabilities struct {
	// Controller: its controller service expands volumes.
	Controller bool
	// Node: only its node service expands volumes.
	Node bool
}

// ExpandResult is the result of ExpandVolume.
type ExpandResult struct {
	// Capacity is the size of the expanded volume in bytes.
	Capacity int64
	// NodeExpansionRequired: the node has to expand the volume as well, mostly its file system.
	NodeExpansionRequired bool
}

// Driver expands volumes. Its errors carry the gRPC status of the driver's response; an error without a status means that
// nothing was sent. It is safe for concurrent use.
type Driver interface {
	// Capabilities returns the driver's capabilities.
	Capabilities(ctx context.Context) (Capabilities, error)
	// ExpandVolume expands the volume to at least size bytes. It may be repeated.
	ExpandVolume(ctx context.Context, pv *corev1.PersistentVolume, size int64) (ExpandResult, error)
	// NotifyDetached calls notify with the name of each volume of the driver whose VolumeAttachment is deleted, until ctx ends.
	NotifyDetached(ctx context.Context, notify func(volume string)) error
}

// Deps are what a Resizer works with. Client and Driver are required.
type Deps struct {
	claimwork.Deps
	Driver Driver
}

// Config is how a Resizer works. DriverName is required.
type Config struct {
	// DriverName is the name of the driver whose volumes are expanded.
	DriverName string
	// Workers is how many volumes are expanded at once. Default claimwork.DefaultWorkers.
	Workers int
}

// Resizer expands the volumes of one driver. Start runs it, once.
type Resizer struct {
	*claimwork.Controller
	driver Driver

	// detachWanted is closed when the first claim waits for the end of an attachment.
	detachWanted     chan struct{}
	detachOnce       sync.Once
	mu               sync.Mutex                   // guards all below
	waitingForDetach map[string]reconcile.Request // by volume: the claim that waits until it is detached
	cleaned          map[reconcile.Request]string // what needs no cleanup any more
	nodeFailed       map[reconcile.Request]bool   // the claims whose delay after an infeasible node expansion has begun
}

// New returns a Resizer. It starts nothing.
func New(deps Deps, config Config) (*Resizer, error) {
	if deps.Driver == nil {
		return nil, errors.New("resize: Deps.Driver is required")
	}
	r := &Resizer{
		driver: deps.Driver, waitingForDetach: map[string]reconcile.Request{}, cleaned: map[reconcile.Request]string{},
		nodeFailed: map[reconcile.Request]bool{}, detachWanted: make(chan struct{}),
	}
	var err error
	r.Controller, err = claimwork.New(deps.Deps, claimwork.Config{
		DriverName: config.DriverName, Workers: config.Workers, Owner: timelineOwner, Work: "expansion", EventFailed: eventFailed,
		CallDurations: "persistentvolumeclaim_expand_duration_seconds", Help: "Duration of ControllerExpandVolume calls, by outcome.",
		NeedsWork: needsWork, Watch: r.watchDetachments,
	}, r.reconcile)
	if err != nil {
		return nil, fmt.Errorf("resize: %w", err)
	}
	return r, nil
}

// watchDetachments retries the expansion of volumes that could not be expanded while they were attached, as soon as they
// are detached. It watches nothing before the first such volume.
func (r *Resizer) watchDetachments(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-r.detachWanted:
	}
	err := r.driver.NotifyDetached(ctx, func(volume string) {
		r.mu.Lock()
		key, waits := r.waitingForDetach[volume]
		delete(r.waitingForDetach, volume)
		r.mu.Unlock()
		if waits {
			r.Retry(key)
		}
	})
	if err != nil && ctx.Err() == nil {
		r.Deps.Logger.Warn("cannot watch VolumeAttachments; volumes that could not be expanded while attached are retried after their backoff",
			"error", err)
	}
}

// succeeded forgets the failures of a claim.
func (r *Resizer) succeeded(key reconcile.Request, volume string) {
	r.Retries.Forget(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waitingForDetach, volume)
	delete(r.nodeFailed, key)
}

// nodeRetryDelay returns how long a claim whose node cannot expand the volume has to wait for its next try, 0 if it has waited.
func (r *Resizer) nodeRetryDelay(key reconcile.Request, claim *corev1.PersistentVolumeClaim) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nodeFailed[key] {
		return 0 // reconcile has asked Retries whether the delay is over
	}
	r.nodeFailed[key] = true
	return r.Retries.Failed(key, claim, wantOf(claim), true)
}

// forget drops the state of a claim that is deleted or needs no work.
func (r *Resizer) forget(key reconcile.Request) {
	r.Retries.Forget(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.cleaned, key)
	delete(r.nodeFailed, key)
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
