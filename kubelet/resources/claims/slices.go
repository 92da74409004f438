package claims

import (
	"context"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/berth-dev/berth/internal/contain"
)

// Times of the removal of the ResourceSlices of a driver that does not respond.
const (
	// removalDelay is how long they outlive it: it may be restarting.
	removalDelay = 30 * time.Second
	// removalTimeout bounds a request that deletes them, of which the first failure is followed by another one after removalRetry, and the
	// next ones later, at most removalMaxRetry later.
	removalTimeout  = 30 * time.Second
	removalRetry    = time.Second
	removalMaxRetry = 5 * time.Minute
)

// removeSlicesUnlessResponding has the ResourceSlices of a driver removed some time later if no socket of it responds, so that no Pods come
// for its devices; a socket that responds cancels that. The caller holds mu.
func (m *Manager) removeSlicesUnlessResponding(name string, d *driver) {
	if c := d.preferred(); c != nil && c.responds {
		if d.cancelRemoval != nil {
			d.cancelRemoval()
			d.cancelRemoval = nil
		}
		return
	}
	if m.config.NoAPIServer || d.cancelRemoval != nil || m.running == nil || m.running.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(m.running)
	d.cancelRemoval = cancel
	selector := fields.Set{resourceapi.ResourceSliceSelectorNodeName: m.config.NodeName, resourceapi.ResourceSliceSelectorDriver: name}.AsSelector()
	m.removeSlices(ctx, name, func() fields.Selector { return selector }, func() {
		defer cancel()
		m.mu.Lock()
		defer m.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		d.cancelRemoval = nil
		if len(d.sockets) == 0 && m.drivers[name] == d {
			delete(m.drivers, name)
		}
	})
}

// slicesOfUnknown selects the ResourceSlices of drivers that have not registered with this process: each may have ended while no kubelet ran.
func (m *Manager) slicesOfUnknown() fields.Selector {
	m.mu.Lock()
	defer m.mu.Unlock()
	terms := []fields.Selector{fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorNodeName, m.config.NodeName)}
	for name := range m.drivers {
		terms = append(terms, fields.OneTermNotEqualSelector(resourceapi.ResourceSliceSelectorDriver, name))
	}
	return fields.AndSelectors(terms...)
}

// removeSlices deletes ResourceSlices after the delay, unless ctx ends first, and calls then afterwards. It tries until it has succeeded.
func (m *Manager) removeSlices(ctx context.Context, driver string, selector func() fields.Selector, then func()) {
	timer := m.deps.Clock.NewTimer(removalDelay)
	m.watches.Go(contain.Guard("claims.slices", driver, func() {
		defer then()
		for retry := removalRetry; ; retry = min(2*retry, removalMaxRetry) {
			select {
			case <-timer.C():
			case <-ctx.Done():
				timer.Stop()
				return
			}
			which := selector().String()
			err := m.deleteSlices(ctx, which) // fails if ctx has ended at the same time
			if err == nil {
				m.deps.Logger.Info("no ResourceSlices are left of DRA drivers that do not respond", "selector", which)
				return
			}
			if ctx.Err() == nil {
				m.deps.Logger.Warn("failed to delete the ResourceSlices of DRA drivers that do not respond; trying again", "selector", which, "error", err)
			}
			timer = m.deps.Clock.NewTimer(retry)
		}
	}))
}

func (m *Manager) deleteSlices(ctx context.Context, selector string) error {
	ctx, cancel := context.WithTimeout(ctx, removalTimeout)
	defer cancel()
	return m.deps.Client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: selector})
}
