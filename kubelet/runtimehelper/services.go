package runtimehelper

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/listwatch"
	"github.com/berth-dev/berth/internal/podutil"
)

// Services caches the cluster's Services for the environment of containers. It is a reflector's store and not an informer,
// since it needs neither handlers nor an index.
type Services struct {
	cache.Store
	client    kubernetes.Interface
	markReady func() // closes synced, once
	synced    chan struct{}
}

var _ cache.ReflectorStore = (*Services)(nil)

// NewServices returns Services; a nil client stands for a node without an API server, where there are none.
func NewServices(client kubernetes.Interface) *Services {
	synced := make(chan struct{})
	s := &Services{
		Store: cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc), client: client, synced: synced,
		markReady: sync.OnceFunc(func() { close(synced) }),
	}
	if client == nil {
		s.markReady()
	}
	return s
}

// Replace implements cache.ReflectorStore.
func (s *Services) Replace(list []any, version string) error {
	if err := s.Store.Replace(list, version); err != nil {
		return err
	}
	s.markReady()
	return nil
}

// Start watches the Services until ctx ends.
func (s *Services) Start(ctx context.Context) error {
	if s.client == nil {
		<-ctx.Done()
		return nil
	}
	services := listwatch.New(s.client.CoreV1().Services(metav1.NamespaceAll), s.client)
	cache.NewReflectorWithOptions(services, &corev1.Service{}, s,
		cache.ReflectorOptions{Name: "kubelet services"}).RunWithContext(ctx)
	return nil
}

// For returns the Services that the environment of the Pod's containers may name. It waits for the first list of them, but not
// for a static Pod, which may be the API server itself: that one gets the Services that are known.
func (s *Services) For(ctx context.Context, pod *corev1.Pod) ([]*corev1.Service, error) {
	if !podutil.IsStatic(pod) {
		select {
		case <-s.synced:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the list of Services: %w", ctx.Err())
		}
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
