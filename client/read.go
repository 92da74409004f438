package client

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
)

// ListOptions select the objects to list. The zero value lists all.
type ListOptions struct {
	// Namespace limits the list to one namespace. Empty means all.
	Namespace string
	// Labels limits the list to objects that it matches. Nil means all.
	Labels labels.Selector
	// Fields limits the list to objects that it matches, by the name, the namespace and the fields of Config.Fields. Nil
	// means all.
	Fields fields.Selector
}

// Get reads one object; namespace is empty for a cluster-scoped one. If the object does not exist, the error is the API's
// NotFound. Get reads from the API, and can fail otherwise, only when the outcome of an earlier write is unknown.
func (r *Resource[T, L, A]) Get(ctx context.Context, namespace, name string) (T, error) {
	k := key(namespace, name)
	if r.overlay.active.Load() == 0 {
		return r.cached(k, name)
	}
	if err := r.lookUpInvalid(ctx, k, namespace); err != nil {
		var zero T
		return zero, err
	}
	// The version is read before the cache, so that the cache is at least that new.
	overlaid, ok := r.overlay.get(k, r.cacheVersion())
	if !ok {
		return r.cached(k, name)
	}
	cached, err := r.cached(k, name)
	if err == nil && newer(cached, overlaid) {
		return cached, nil
	}
	if !overlaid.exists {
		return overlaid.obj, apierrors.NewNotFound(r.config.Resource, name)
	}
	return overlaid.obj, nil
}

// List reads the objects that the options select, in no particular order. Like Get, it reads from the API only when the
// outcome of an earlier write is unknown.
func (r *Resource[T, L, A]) List(ctx context.Context, options ListOptions) ([]T, error) {
	if err := r.checkFields(options.Fields); err != nil {
		return nil, err
	}
	return r.readMerged(ctx, options.Namespace, func() ([]any, error) {
		if options.Namespace == "" {
			return r.store.List(), nil
		}
		var found []any
		err := cache.ListAllByNamespace(r.store, options.Namespace, labels.Everything(), func(obj any) {
			found = append(found, obj)
		})
		return found, err
	}, func(obj T) bool {
		return (options.Labels == nil || options.Labels.Matches(labels.Set(obj.GetLabels()))) &&
			(options.Fields == nil || options.Fields.Matches(r.fieldsOf(obj)))
	})
}

// Index reads the objects that one of the informer's indexes has under value, in no particular order.
func (r *Resource[T, L, A]) Index(ctx context.Context, index, value string) ([]T, error) {
	values, ok := r.store.GetIndexers()[index]
	if !ok {
		return nil, fmt.Errorf("read %s by index %q: the informer has no such index", r.config.Resource, index)
	}
	return r.readMerged(ctx, "", func() ([]any, error) { return r.store.ByIndex(index, value) }, func(obj T) bool {
		of, err := values(obj)
		return err == nil && slices.Contains(of, value)
	})
}

// readMerged merges the cache with the overlay and keeps the objects that are selected.
func (r *Resource[T, L, A]) readMerged(
	ctx context.Context, namespace string, fromCache func() ([]any, error), selected func(T) bool,
) ([]T, error) {
	var overlaid view[T]
	if r.overlay.active.Load() != 0 {
		if err := r.lookUpInvalid(ctx, "", namespace); err != nil {
			return nil, err
		}
		overlaid = r.overlay.snapshot(namespace, r.cacheVersion())
	}
	objects, err := fromCache()
	if err != nil {
		return nil, fmt.Errorf("list %s from the cache: %w", r.config.Resource, err)
	}
	found := make([]T, 0, len(objects))
	for _, item := range objects {
		obj, ok := item.(T)
		if !ok {
			return nil, fmt.Errorf("list %s from the cache: it holds an object of type %T", r.config.Resource, item)
		}
		if len(overlaid.states)+len(overlaid.listedVersions) > 0 {
			k := keyOf(obj)
			if s, ok := overlaid.get(k); ok && !newer(obj, s) {
				continue // the overlay has a newer state; it is added below
			}
			delete(overlaid.states, k)
		}
		if selected(obj) {
			found = append(found, obj)
		}
	}
	for k, s := range overlaid.states {
		// An index need not have shown the object's present state above.
		if cached, exists, _ := r.store.GetByKey(k); exists {
			if obj, ok := cached.(T); ok && newer(obj, s) {
				s = state[T]{obj: obj, exists: true}
			}
		}
		if s.exists && selected(s.obj) {
			found = append(found, s.obj)
		}
	}
	return found, nil
}

// newer reports whether the cached object is at least as new as a state of the overlay.
func newer[T Object](cached T, overlaid state[T]) bool {
	return parseVersion(cached.GetResourceVersion()) >= overlaid.version ||
		(overlaid.exists && cached.GetResourceVersion() == overlaid.obj.GetResourceVersion() && cached.GetUID() == overlaid.obj.GetUID())
}

// cached reads one key from the cache alone.
func (r *Resource[T, L, A]) cached(k, name string) (T, error) {
	var zero T
	item, exists, err := r.store.GetByKey(k)
	if err != nil {
		return zero, fmt.Errorf("read %s %q from the cache: %w", r.config.Resource, k, err)
	}
	if !exists {
		return zero, apierrors.NewNotFound(r.config.Resource, name)
	}
	obj, ok := item.(T)
	if !ok {
		return zero, fmt.Errorf("read %s %q from the cache: it holds an object of type %T", r.config.Resource, k, item)
	}
	return obj, nil
}

// cacheVersion is the version that the cache has reached at least.
func (r *Resource[T, L, A]) cacheVersion() uint64 {
	return parseVersion(r.store.LastStoreSyncResourceVersion())
}

func (r *Resource[T, L, A]) fieldsOf(obj T) fields.Set {
	set := fields.Set{metav1.ObjectNameField: obj.GetName(), namespaceField: obj.GetNamespace()}
	for field, value := range r.config.Fields {
		set[field] = value(obj)
	}
	return set
}

// namespaceField is the field selector for the namespace.
const namespaceField = "metadata.namespace"

// checkFields rejects a selector by a field that Config.Fields does not return, which would silently match nothing.
func (r *Resource[T, L, A]) checkFields(selector fields.Selector) error {
	if selector == nil {
		return nil
	}
	for _, requirement := range selector.Requirements() {
		field := requirement.Field
		if _, ok := r.config.Fields[field]; !ok && field != metav1.ObjectNameField && field != namespaceField {
			return fmt.Errorf("list %s: field selector %q is not supported; Config.Fields does not give it",
				r.config.Resource, field)
		}
	}
	return nil
}
