package node

import (
	"context"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/wakeup"
)

// volumesInUse is the list of attachable volumes in use, and how much of it the API server has stored. It is safe for
// concurrent use.
type volumesInUse struct {
	mu      sync.Mutex // guards all below
	volumes []corev1.UniqueVolumeName
	gen     int64 // number of calls of set
	stored  int64 // newest generation that the API server has

	written wakeup.Broadcast // notified when stored grows
}

// set replaces the list and returns the new one's generation.
func (v *volumesInUse) set(volumes []corev1.UniqueVolumeName) (gen int64) {
	volumes = slices.Clone(volumes)
	slices.Sort(volumes)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.volumes = volumes
	v.gen++
	return v.gen
}

// latest returns the list and its generation, which is 0 before the first call of set. The caller must not modify the
// list.
func (v *volumesInUse) latest() (volumes []corev1.UniqueVolumeName, gen int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.volumes, v.gen
}

// markWritten wakes the callers of waitWritten up to that generation.
func (v *volumesInUse) markWritten(gen int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if gen > v.stored {
		v.stored = gen
		v.written.Notify()
	}
}

// waitWritten returns when the API server has stored that generation, or with the cause of the end of ctx.
func (v *volumesInUse) waitWritten(ctx context.Context, gen int64) error {
	for {
		written := v.written.Changed()
		v.mu.Lock()
		done := v.stored >= gen
		v.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-written:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
