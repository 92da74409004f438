package client

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Object is an API object.
type Object interface {
	runtime.Object
	metav1.Object
}

// API is the part of a client for one namespace that a Resource uses: T is the object, L its list. The typed clients of
// client-go implement it, such as the result of clientset.CoreV1().Pods("default").
type API[T Object, L runtime.Object] interface {
	Create(ctx context.Context, obj T, options metav1.CreateOptions) (T, error)
	Update(ctx context.Context, obj T, options metav1.UpdateOptions) (T, error)
	Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
	DeleteCollection(ctx context.Context, options metav1.DeleteOptions, list metav1.ListOptions) error
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, options metav1.PatchOptions,
		subresources ...string) (T, error)
}

// Config describes the kind of object.
type Config[T Object] struct {
	// Resource names the kind in errors. It is required.
	Resource schema.GroupResource
	// Fields returns the values of the fields that List may select by, such as "spec.nodeName", besides the name and the
	// namespace.
	Fields map[string]func(T) string
	// Filter reports whether the informer's cache holds an object, if its list and watch are filtered; reads show objects
	// that are filtered out as not existing. It must agree with the informer's selectors. The default is all.
	Filter func(T) bool
}

// Resource reads and writes the objects of one kind. It is safe for concurrent use. The objects that it returns may be
// the cache's own and must not be modified; copy them first.
type Resource[T Object, L runtime.Object, A API[T, L]] struct {
	api      func(namespace string) A
	informer cache.SharedIndexInformer
	store    cache.Indexer
	config   Config[T]
	overlay  *overlay[T]
}

// New returns a Resource of a client, given as a function of the namespace, and an informer that the caller runs:
//
//	pods, err := client.New(clientset.CoreV1().Pods, factory.Core().V1().Pods().Informer(),
//		client.Config[*corev1.Pod]{Resource: corev1.Resource("pods")})
//
// All writes that its reads are to show must go through this one Resource.
func New[T Object, L runtime.Object, A API[T, L]](
	api func(namespace string) A, informer cache.SharedIndexInformer, config Config[T],
) (*Resource[T, L, A], error) {
	if api == nil || informer == nil {
		return nil, errors.New("client: an API and an informer are required")
	}
	if config.Resource.Resource == "" {
		return nil, errors.New("client: Config.Resource is required")
	}
	return &Resource[T, L, A]{
		api: api, informer: informer, store: informer.GetIndexer(), config: config, overlay: newOverlay[T](),
	}, nil
}

// Pending returns how many results of writes the overlay holds, known or to be looked up.
func (r *Resource[T, L, A]) Pending() int { return int(r.overlay.active.Load()) }

// lookUpInvalid looks up in the API the invalidated states that a read of the key, or of the namespace if the key is empty,
// depends on.
func (r *Resource[T, L, A]) lookUpInvalid(ctx context.Context, key, namespace string) error {
	keys, namespaces, upTo := r.overlay.pendingLookups(key, namespace)
	for _, invalid := range namespaces {
		if err := r.lookUpNamespace(ctx, invalid, upTo); err != nil {
			return err
		}
	}
	if len(namespaces) > 0 {
		keys, _, upTo = r.overlay.pendingLookups(key, namespace)
	}
	for _, invalid := range keys {
		if err := r.lookUp(ctx, invalid, upTo); err != nil {
			return err
		}
	}
	return nil
}

// lookUp reads one key from the API. It lists, because only a list has the version at which an object does not exist.
func (r *Resource[T, L, A]) lookUp(ctx context.Context, key string, upTo uint64) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return fmt.Errorf("look up %s %q: %w", r.config.Resource, key, err)
	}
	version, found, err := r.listLive(ctx, namespace, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
	})
	if err != nil {
		return fmt.Errorf("look up %s %q after a write of unknown outcome: %w", r.config.Resource, key, err)
	}
	obj, exists := found[key]
	r.overlay.resolve(key, state[T]{version: version, obj: obj, exists: exists}, upTo)
	return nil
}

// lookUpNamespace reads a whole namespace from the API.
func (r *Resource[T, L, A]) lookUpNamespace(ctx context.Context, namespace string, upTo uint64) error {
	version, found, err := r.listLive(ctx, namespace, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("look up %s in namespace %q after a write of unknown outcome: %w",
			r.config.Resource, namespace, err)
	}
	r.overlay.resolveNamespace(namespace, version, found, upTo)
	return nil
}

// listLive lists from the API the objects that the cache is to hold.
func (r *Resource[T, L, A]) listLive(
	ctx context.Context, namespace string, options metav1.ListOptions,
) (version uint64, found map[string]T, err error) {
	list, err := r.api(namespace).List(ctx, options)
	if err != nil {
		return 0, nil, err
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return 0, nil, err
	}
	found = map[string]T{}
	err = meta.EachListItem(list, func(item runtime.Object) error {
		obj, ok := item.(T)
		if !ok {
			return fmt.Errorf("the list has an object of type %T", item)
		}
		if r.config.Filter == nil || r.config.Filter(obj) {
			found[keyOf(obj)] = obj
		}
		return nil
	})
	return parseVersion(accessor.GetResourceVersion()), found, err
}

func keyOf(obj metav1.Object) string { return key(obj.GetNamespace(), obj.GetName()) }

func key(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}
