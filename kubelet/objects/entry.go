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

	"github.com/berth-dev/berth/kubelet/authzretry"
)

const (
	// firstRetry and lastRetry bound the pause after an error of the API server.
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second
	// watchSeconds and as much again at most is how long one watch lasts; then the object is read anew, which
	// bounds how long a lost event can go unseen.
	watchSeconds = 300
)

// object is a Secret or a ConfigMap.
type object interface {
	runtime.Object
	metav1.Object
}

// entry is one object. pods, cancel and idleSince are guarded by the Manager's mutex.
type entry struct {
	ref       Ref
	pods      map[types.UID]struct{}
	cancel    context.CancelFunc // nil until it is followed
	idleSince time.Time          // when the last Pod went that needed it
	again     chan struct{}      // has a value when the object is to be read again

	mu     sync.Mutex // guards the three below
	object object
	err    error
	known  chan struct{} // closed with the first answer that whoever asks now may get
}

func newEntry(ref Ref) *entry {
	return &entry{
		ref: ref, pods: make(map[types.UID]struct{}), again: make(chan struct{}, 1), known: make(chan struct{}),
	}
}

// renew has the object read again before anybody gets it: a Pod must not see an older one than it would without the
// Pods before it, and a watch says nothing of how far behind it is.
func (e *entry) renew() {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case <-e.known:
		e.known = make(chan struct{})
	default:
	}
	select {
	case e.again <- struct{}{}:
	default:
	}
}

// wait returns the object, or why there is none, as soon as that is known.
func (e *entry) wait(ctx context.Context) (object, error) {
	e.mu.Lock()
	known := e.known
	e.mu.Unlock()
	select {
	case <-known:
	case <-ctx.Done():
		return nil, fmt.Errorf("get %s: wait for the first answer of the API server: %w", e.ref, ctx.Err())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.object, e.err
}

// set keeps the newer of what is known and what is told, and reports whether that changed anything. A nil object
// with a NotFound error says that it is gone; with another error, that it could not be read, which changes nothing if
// the object is known.
func (e *entry) set(object object, err error) (changed bool) {
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
	e.answered()
	return changed
}

// finish answers those who wait still.
func (e *entry) finish(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.object == nil && e.err == nil {
		e.err = err
	}
	e.answered()
}

func (e *entry) answered() {
	select {
	case <-e.known:
	default:
		close(e.known)
	}
}

// older reports whether the event's object is older than what is known. A watch begins with what the API server's
// cache has, which may lag behind the GET before it.
func (e *entry) older(event object) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.object == nil {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(event.GetResourceVersion(), e.object.GetResourceVersion())
	return err == nil && order < 0
}

// immutable reports whether the object can only be deleted.
func (e *entry) immutable() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch object := e.object.(type) {
	case *corev1.Secret:
		return object.Immutable != nil && *object.Immutable
	case *corev1.ConfigMap:
		return object.Immutable != nil && *object.Immutable
	}
	return false
}

// changeable reports whether the object is there and may change.
func (e *entry) changeable() bool {
	e.mu.Lock()
	there := e.object != nil
	e.mu.Unlock()
	return there && !e.immutable()
}

// run follows the entry's object until ctx ends: GET, watch from there, and again when the watch ends.
func (m *Manager) run(ctx context.Context, entry *entry, source source) {
	retry := firstRetry
	for ctx.Err() == nil && !m.abandon(entry) {
		object, err := authzretry.Do(ctx, m.clock, source.get)
		if ctx.Err() != nil {
			return
		}
		if entry.set(object, err) {
			m.notify(entry)
		}
		if err == nil && entry.immutable() {
			<-ctx.Done()
			return
		}
		if err == nil || apierrors.IsNotFound(err) {
			var healthy bool
			if healthy, err = m.followEvents(ctx, entry, source); healthy {
				retry = firstRetry
			}
			if err == nil || ctx.Err() != nil {
				continue
			}
		}
		m.log.Debug("cannot follow object", "object", entry.ref.String(), "retry", retry, "error", err)
		timer := m.clock.NewTimer(retry)
		select {
		case <-timer.C():
		case <-entry.again:
		case <-ctx.Done():
		}
		timer.Stop()
		retry = min(2*retry, lastRetry)
	}
}

// followEvents takes in the events of one watch. It reports whether the watch gave at least one event; the error is
// nil if the watch ended in the ordinary way.
func (m *Manager) followEvents(ctx context.Context, entry *entry, source source) (healthy bool, err error) {
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
		case <-entry.again:
			object, err := authzretry.Do(ctx, m.clock, source.get)
			if ctx.Err() == nil && entry.set(object, err) {
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
			if m.take(entry, event) {
				m.notify(entry)
			}
		}
		switch immutable := entry.immutable(); {
		case immutable:
			events.Stop()
			results = nil
		case results == nil:
			return healthy, nil // another one has its name now
		}
	}
}

// take puts an event into the entry, and reports whether it changed anything.
func (m *Manager) take(entry *entry, event watch.Event) bool {
	object, ok := event.Object.(object)
	if !ok || object.GetName() != entry.ref.Name || object.GetNamespace() != entry.ref.Namespace ||
		event.Type == watch.Bookmark || entry.older(object) {
		return false
	}
	if event.Type == watch.Deleted {
		return entry.set(nil, notFound(entry.ref))
	}
	return entry.set(object, nil)
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

// watch begins with the object as the API server's cache has it, if it exists, so that nothing that happened since
// the GET is missed. The version that the GET gave cannot be named: it may be years old, and forgotten.
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
