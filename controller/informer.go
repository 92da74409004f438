package controller

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/reconcile"
)

// For returns a Source of the objects of an informer: each event enqueues a request for the object itself. The informer may
// have typed objects, metadata only or unstructured objects.
func For(informer cache.SharedInformer, predicates ...Predicate) Source[reconcile.Request] {
	return Watches(informer, func(obj metav1.Object) []reconcile.Request { return []reconcile.Request{RequestFor(obj)} },
		predicates...)
}

// Owner is a kind of object whose controller reference the objects of another kind carry.
type Owner struct {
	// Group and Kind are those of the reference; any version will do.
	Group, Kind string
	// ClusterScoped is set if such owners have no namespace.
	ClusterScoped bool
}

// Owns returns a Source of the objects that another object controls: each event enqueues a request for the owner that the
// object's controller reference names. When the reference changes, it enqueues both owners.
func Owns(informer cache.SharedInformer, owner Owner, predicates ...Predicate) Source[reconcile.Request] {
	return Watches(informer, func(obj metav1.Object) []reconcile.Request {
		ref := metav1.GetControllerOfNoCopy(obj)
		if ref == nil || ref.Kind != owner.Kind {
			return nil
		}
		if version, err := schema.ParseGroupVersion(ref.APIVersion); err != nil || version.Group != owner.Group {
			return nil
		}
		request := reconcile.Request{NamespacedName: types.NamespacedName{Name: ref.Name}}
		if !owner.ClusterScoped {
			request.Namespace = obj.GetNamespace()
		}
		return []reconcile.Request{request}
	}, predicates...)
}

// RequestFor returns the request for an object itself.
func RequestFor(obj metav1.Object) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}}
}

// Watches returns a Source of the objects of an informer, where keys maps an object to its requests; for an update it is
// called with the old and with the new object. T is the type of the informer's objects or an interface that they
// implement. keys must not modify the object, and must not block.
func Watches[T metav1.Object, R comparable](
	informer cache.SharedInformer, keys func(T) []R, predicates ...Predicate,
) Source[R] {
	return &informerSource[T, R]{informer: informer, keys: keys, predicates: predicates}
}

type informerSource[T metav1.Object, R comparable] struct {
	informer   cache.SharedInformer
	keys       func(T) []R
	predicates []Predicate
}

// Name implements Source.
func (s *informerSource[T, R]) Name() string {
	var kind T
	if name := fmt.Sprintf("%T", kind); name != "<nil>" {
		return "informer of " + name
	}
	return "informer"
}

// Run implements Source.
func (s *informerSource[T, R]) Run(ctx context.Context, enqueuer Enqueuer[R], synced func()) error {
	if s.informer == nil || s.keys == nil {
		return errors.New("an informer and a function of keys are required")
	}
	registration, err := s.informer.AddEventHandler(&handler[T, R]{informerSource: s, sink: enqueuer})
	if err != nil && ctx.Err() != nil {
		return nil //nolint:nilerr // an informer that ended with ctx takes no handler any more
	}
	if err != nil {
		return fmt.Errorf("add event handler: %w", err)
	}
	select {
	case <-registration.HasSyncedChecker().Done():
		synced()
		<-ctx.Done()
	case <-ctx.Done():
	}
	if err := s.informer.RemoveEventHandler(registration); err != nil {
		return fmt.Errorf("remove event handler: %w", err)
	}
	return nil
}

// handler converts an informer's notifications to keys.
type handler[T metav1.Object, R comparable] struct {
	*informerSource[T, R]
	sink Enqueuer[R]
}

var _ cache.ResourceEventHandler = (*handler[metav1.Object, string])(nil)

// OnAdd implements cache.ResourceEventHandler.
func (h *handler[T, R]) OnAdd(obj any, initial bool) {
	h.handle(Event{Type: Created, Object: objectOf(obj), Initial: initial}, initial)
}

// OnUpdate implements cache.ResourceEventHandler. An update that changes nothing is a resync.
func (h *handler[T, R]) OnUpdate(before, after any) {
	event := Event{Type: Updated, Old: objectOf(before), Object: objectOf(after)}
	resync := event.Old != nil && event.Object != nil && event.Object.GetResourceVersion() != "" &&
		event.Old.GetResourceVersion() == event.Object.GetResourceVersion()
	event.Resync = resync
	h.handle(event, resync)
}

// OnDelete implements cache.ResourceEventHandler.
func (h *handler[T, R]) OnDelete(obj any) {
	h.handle(Event{Type: Deleted, Object: objectOf(obj)}, false)
}

func (h *handler[T, R]) handle(event Event, background bool) {
	if event.Object == nil {
		return // a tombstone without its object has no key
	}
	for _, predicate := range h.predicates {
		if !predicate(event) {
			return
		}
	}
	add := h.sink.Add
	if background {
		add = h.sink.AddBackground
	}
	// Old and new object mostly have the same key. Added twice, a fast worker would reconcile it twice.
	before, after := h.keysOf(event.Old), h.keysOf(event.Object)
	added := make(map[R]struct{}, len(before))
	for _, key := range before {
		added[key] = struct{}{}
		add(key)
	}
	for _, key := range after {
		if _, did := added[key]; !did {
			add(key)
		}
	}
}

func (h *handler[T, R]) keysOf(obj metav1.Object) []R {
	typed, ok := obj.(T)
	if !ok {
		return nil
	}
	return h.keys(typed)
}

// objectOf returns the API object of a notification, nil if it has none.
func objectOf(obj any) metav1.Object {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	if obj == nil {
		return nil
	}
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return nil
	}
	return accessor
}
