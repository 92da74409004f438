package trustbundle

import (
	"context"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	typedv1beta1 "k8s.io/client-go/kubernetes/typed/certificates/v1beta1"
	"k8s.io/client-go/tools/cache"
)

// api is the API of the bundles. It reports failures to the Manager.
type api struct {
	client typedv1beta1.ClusterTrustBundleInterface
	m      *Manager
}

// List implements listwatch.API.
func (a api) List(ctx context.Context, options metav1.ListOptions) (*certificatesv1beta1.ClusterTrustBundleList, error) {
	list, err := a.client.List(ctx, options)
	if err != nil {
		a.m.listed(err)
	}
	return list, err
}

// Watch implements listwatch.API.
func (a api) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	events, err := a.client.Watch(ctx, options)
	if err != nil {
		a.m.listed(err)
	}
	return events, err
}

// notifyingStore notifies the Manager's subscribers of each change.
type notifyingStore struct {
	cache.Store
	m *Manager
}

var _ cache.ReflectorStore = (*notifyingStore)(nil)

// Replace implements cache.ReflectorStore.
func (s *notifyingStore) Replace(list []any, version string) error {
	if err := s.Store.Replace(list, version); err != nil {
		return err
	}
	s.m.listed(nil)
	s.m.synchronized()
	s.m.notify()
	return nil
}

// Add implements cache.ReflectorStore.
func (s *notifyingStore) Add(object any) error {
	defer s.m.notify()
	return s.Store.Add(object)
}

// Update implements cache.ReflectorStore.
func (s *notifyingStore) Update(object any) error {
	defer s.m.notify()
	return s.Store.Update(object)
}

// Delete implements cache.ReflectorStore.
func (s *notifyingStore) Delete(object any) error {
	defer s.m.notify()
	return s.Store.Delete(object)
}
