package page

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// The resources that a page watches.
const (
	pods           = "pods"
	claims         = "persistentvolumeclaims"
	volumes        = "persistentvolumes"
	nodes          = "nodes"
	services       = "services"
	events         = "events"
	replicaSets    = "replicasets"
	deployments    = "deployments"
	endpointSlices = "endpointslices"
)

// byInvolved is the index of events by the UID of the object that they are about.
const byInvolved = "involved"

// informerSet has an informer for each resource.
type informerSet struct {
	namespace string // the only one that is watched; empty for all
	factory   informers.SharedInformerFactory
	of        map[string]cache.SharedIndexInformer
	synced    sync.Map // resource -> true, once the informer has its list
	refused   sync.Map // resource -> true, once the user was not allowed to list it
}

// newInformerSet returns informers of a namespace, of all if it is empty, that call changed for each change. It starts nothing.
func newInformerSet(client kubernetes.Interface, namespace string, changed func(object any)) (*informerSet, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(trim), informers.WithNamespace(namespace))
	core, apps := factory.Core().V1(), factory.Apps().V1()
	s := &informerSet{namespace: namespace, factory: factory, of: map[string]cache.SharedIndexInformer{
		pods: core.Pods().Informer(), claims: core.PersistentVolumeClaims().Informer(), volumes: core.PersistentVolumes().Informer(),
		nodes: core.Nodes().Informer(), services: core.Services().Informer(), events: core.Events().Informer(),
		replicaSets: apps.ReplicaSets().Informer(), deployments: apps.Deployments().Informer(),
		endpointSlices: factory.Discovery().V1().EndpointSlices().Informer(),
	}}
	err := s.of[events].AddIndexers(cache.Indexers{byInvolved: func(object any) ([]string, error) {
		event, ok := object.(*corev1.Event)
		if !ok {
			return nil, nil
		}
		return []string{string(event.InvolvedObject.UID)}, nil
	}})
	if err != nil {
		return nil, err
	}
	for resource, informer := range s.of {
		err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, reflector *cache.Reflector, err error) {
			if apierrors.IsForbidden(err) {
				s.refused.Store(resource, true) // it tries again, later and later: the rights may change
				return
			}
			cache.DefaultWatchErrorHandler(ctx, reflector, err)
		})
		if err != nil {
			return nil, err
		}
		_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: changed, UpdateFunc: func(_, object any) { changed(object) }, DeleteFunc: func(object any) {
				if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
					object = gone.Obj
				}
				changed(object)
			},
		})
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// trim drops what no page shows, to save memory.
func trim(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}

// start starts the informers until ctx ends, and waits until each has its list or may not read it, at most until wait ends.
func (s *informerSet) start(ctx, wait context.Context) {
	s.factory.StartWithContext(ctx)
	for resource, informer := range s.of {
		cache.WaitForCacheSync(wait.Done(), func() bool {
			_, refused := s.refused.Load(resource)
			return refused || informer.HasSynced()
		})
	}
}

// store returns the cache of a resource, false until it has its list.
func (s *informerSet) store(resource string) (cache.Indexer, bool) {
	informer := s.of[resource]
	if _, ok := s.synced.Load(resource); !ok {
		if !informer.HasSynced() {
			return nil, false
		}
		s.synced.Store(resource, true)
	}
	return informer.GetIndexer(), true
}

// storeOf returns the cache of a resource if it has all objects of the namespace, of all if that is empty.
func (s *informerSet) storeOf(resource, namespace string) (cache.Indexer, bool) {
	if s.namespace != "" && s.namespace != namespace {
		return nil, false
	}
	return s.store(resource)
}
