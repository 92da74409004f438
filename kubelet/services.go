package kubelet

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// services keeps the cluster's Services, for the environment of containers.
type services struct {
	cache.Store
	client kubernetes.Interface
	listed func() // closes synced, once
	synced chan struct{}
}

var _ cache.ReflectorStore = (*services)(nil)

func newServices(client kubernetes.Interface) *services {
	s := &services{
		Store: cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc), client: client, synced: make(chan struct{}),
	}
	s.listed = sync.OnceFunc(func() { close(s.synced) })
	return s
}

// Replace is the reflector's: these are all the Services there are.
func (s *services) Replace(list []any, version string) error {
	if err := s.Store.Replace(list, version); err != nil {
		return err
	}
	s.listed()
	return nil
}

// Start follows the Services until ctx ends.
func (s *services) Start(ctx context.Context) error {
	api := s.client.CoreV1().Services(metav1.NamespaceAll)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return api.Watch(ctx, o)
		},
	}
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, s.client), &corev1.Service{}, s,
		cache.ReflectorOptions{Name: "kubelet services"}).RunWithContext(ctx)
	return nil
}

// all waits for the first list and returns the Services.
func (s *services) all(ctx context.Context) ([]*corev1.Service, error) {
	select {
	case <-s.synced:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	items := s.List()
	out := make([]*corev1.Service, 0, len(items))
	for _, item := range items {
		if service, ok := item.(*corev1.Service); ok {
			out = append(out, service)
		}
	}
	return out, nil
}
