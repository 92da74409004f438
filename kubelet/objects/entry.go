package objects

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/kubelet/authzretry"
)

const (
	// initialBackoff and maxBackoff bound the wait after an error of the API server.
	initialBackoff = 50 * time.Millisecond
	maxBackoff     = 30 * time.Second
	// watchSeconds is the minimum duration of a watch, the maximum is twice as long; then the object is read again,
	// which bounds how long a lost event can go unnoticed.
	watchSeconds = 300
)

// object is a Secret or a ConfigMap.
type object interface {
	runtime.Object
	metav1.Object
}

// entry is one object. The Manager's mutex guards pods, cancel and idleSince.
type entry struct {
	ref       Ref
	pods      map[types.UID]struct{}
	cancel    context.CancelFunc // nil until the object is watched
	idleSince time.Time          // when the last Pod released it
	reread    wakeup.Signal      // set when the object must be read again

	mu     sync.Mutex // guards all below
	object object
	err    error
	ready  chan struct{} // closed with the first response that current callers may get
}

func newEntry(ref Ref) *entry {
	return &entry{
		ref: ref, pods: make(map[types.UID]struct{}), reread: wakeup.NewSignal(), ready: make(chan struct{}),
	}
}

// requireReread makes later callers wait until the object was read again: a Pod must not get an older state than it
// would get without the Pods before it, and a watch does not show how far behind it is.
func (e *entry) requireReread() {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case <-e.ready:
		e.ready = make(chan struct{})
	default:
	}
	e.reread.Notify()
}

// wait returns the object, or the error of reading it, as soon as one of them is known.
func (e *entry) wait(ctx context.Context) (object, error) {
	e.mu.Lock()
	ready := e.ready
	e.mu.Unlock()
	select {
	case <-ready:
	case <-ctx.Done():
		return nil, fmt.Errorf("get %s: wait for the first response of the API server: %w", e.ref, ctx.Err())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.object, e.err
}

// update stores an object or error and reports whether it changes anything. A nil object with a NotFound error means
// that the object does not exist; with another error, that it could not be read, which changes nothing if the object is
// known.
func (e *entry) update(object object, err error) (changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case object != nil:
		version := object.GetResourceVersion()
		changed = e.object == nil || version == "" || e.object.GetResourceVersion() != version
		e.object, e.err = object, nil
	case apierrors.IsNotFound(err):
		changed = e.err == nil || !apierrors.IsNotFound(e.err)
		e.object, e.err = nil, err
	case e.object == nil:
		changed = e.err == nil || e.err.Error() != err.Error()
		e.err = err
	}
	e.markReady()
	return changed
}

// fail wakes the waiting callers with the error.
func (e *entry) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.object == nil && e.err == nil {
		e.err = err
	}
	e.markReady()
}

// markReady wakes the waiting callers.
func (e *entry) markReady() {
	select {
	case <-e.ready:
	default:
		close(e.ready)
	}
}

// isStale reports whether the event's object is older than the known one. A watch begins with the state of the API
// server's cache, which may be older than the GET before it.
func (e *entry) isStale(event object) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.object == nil {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(event.GetResourceVersion(), e.object.GetResourceVersion())
	return err == nil && order < 0
}

// isImmutable reports whether the object can only be deleted.
func (e *entry) isImmutable() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch object := e.object.(type) {
	case *corev1.Secret:
		return ptr.Deref(object.Immutable, false)
	case *corev1.ConfigMap:
		return ptr.Deref(object.Immutable, false)
	}
	return false
}

// isMutable reports whether the object exists and may change.
func (e *entry) isMutable() bool {
	e.mu.Lock()
	exists := e.object != nil
	e.mu.Unlock()
	return exists && !e.isImmutable()
}

// syncEntry keeps the entry's object up to date until ctx ends: GET, watch, and again when the watch ends.
func (m *Manager) syncEntry(ctx context.Context, entry *entry, source source) {
	backoff := initialBackoff
	for ctx.Err() == nil && !m.evictUnused(entry) {
		object, err := authzretry.Do(ctx, m.clock, source.get)
		if ctx.Err() != nil {
			return
		}
		if entry.update(object, err) {
			m.notify(entry)
		}
		if err == nil && entry.isImmutable() {
			<-ctx.Done()
			return
		}
		if err == nil || apierrors.IsNotFound(err) {
			var healthy bool
			if healthy, err = m.watchEvents(ctx, entry, source); healthy {
				backoff = initialBackoff
			}
			if err == nil || ctx.Err() != nil {
				continue
			}
		}
		m.logger.Debug("failed to watch object; retrying", "object", entry.ref.String(), "backoff", backoff, "error", err)
		timer := m.clock.NewTimer(backoff)
		select {
		case <-timer.C():
		case <-entry.reread.C():
		case <-ctx.Done():
		}
		timer.Stop()
		backoff = min(2*backoff, maxBackoff)
	}
}

// watchEvents applies the events of one watch. It reports whether the watch delivered at least one event; the error is
// nil if the watch ended normally.
func (m *Manager) watchEvents(ctx context.Context, entry *entry, source source) (healthy bool, err error) {
	events, err := source.watch(ctx)
	if err != nil {
		return false, err
	}
	defer events.Stop()
	results := events.ResultChan() // nil while the object cannot change
	for {
		select {
		case <-ctx.Done():
			return healthy, nil
		case <-entry.reread.C():
			object, err := authzretry.Do(ctx, m.clock, source.get)
			if ctx.Err() == nil && entry.update(object, err) {
				m.notify(entry)
			}
		case event, ok := <-results:
			switch {
			case !ok && !healthy:
				return false, errors.New("the watch ended without an event")
			case !ok:
				return true, nil
			case event.Type == watch.Error:
				return healthy, apierrors.FromObject(event.Object)
			}
			healthy = true
			if m.applyEvent(entry, event) {
				m.notify(entry)
			}
		}
		switch immutable := entry.isImmutable(); {
		case immutable:
			events.Stop()
			results = nil
		case results == nil:
			return healthy, nil // another object has its name now
		}
	}
}

// applyEvent updates the entry from an event and reports whether it changed anything.
func (m *Manager) applyEvent(entry *entry, event watch.Event) bool {
	object, ok := event.Object.(object)
	if !ok || object.GetName() != entry.ref.Name || object.GetNamespace() != entry.ref.Namespace ||
		event.Type == watch.Bookmark || entry.isStale(object) {
		return false
	}
	if event.Type == watch.Deleted {
		return entry.update(nil, notFound(entry.ref))
	}
	return entry.update(object, nil)
}

// source reads one object from the API server.
type source struct {
	client kubernetes.Interface
	ref    Ref
}

func (s source) get(ctx context.Context) (object, error) {
	switch s.ref.Kind {
	case KindSecret:
		secret, err := s.client.CoreV1().Secrets(s.ref.Namespace).Get(ctx, s.ref.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return secret, nil
	case KindConfigMap:
		configMap, err := s.client.CoreV1().ConfigMaps(s.ref.Namespace).Get(ctx, s.ref.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return configMap, nil
	}
	return nil, fmt.Errorf("get %s: unknown kind", s.ref)
}

// watch begins with the object in the state of the API server's cache, if it exists, so that no change since the GET is
// missed. The resource version of the GET cannot be used: it may be years old and compacted.
func (s source) watch(ctx context.Context) (watch.Interface, error) {
	seconds := watchSeconds + rand.Int64N(watchSeconds)
	options := metav1.ListOptions{
		FieldSelector:       fields.OneTermEqualSelector("metadata.name", s.ref.Name).String(),
		ResourceVersion:     "0",
		TimeoutSeconds:      &seconds,
		AllowWatchBookmarks: true,
	}
	switch s.ref.Kind {
	case KindSecret:
		return s.client.CoreV1().Secrets(s.ref.Namespace).Watch(ctx, options)
	case KindConfigMap:
		return s.client.CoreV1().ConfigMaps(s.ref.Namespace).Watch(ctx, options)
	}
	return nil, fmt.Errorf("watch %s: unknown kind", s.ref)
}
