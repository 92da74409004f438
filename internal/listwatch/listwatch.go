package listwatch

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// API is the part of a typed client that a ListerWatcher uses, such as clientset.CoreV1().Pods("default").
type API[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// New returns a ListerWatcher of all objects of the API. client is the clientset of the API: a fake one may not be able to
// stream lists.
func New[L runtime.Object](api API[L], client any) cache.ListerWatcher {
	return Select(api, client, func(*metav1.ListOptions) {})
}

// Select returns a ListerWatcher of the objects that the selector in the options of each request selects.
func Select[L runtime.Object](api API[L], client any, selector func(*metav1.ListOptions)) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			selector(&options)
			return api.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			selector(&options)
			return api.Watch(ctx, options)
		},
	}, client)
}
