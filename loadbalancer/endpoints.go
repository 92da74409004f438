package loadbalancer

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/reconcile"
)

// endpoints follows the EndpointSlices from the first Service on that has externalTrafficPolicy Local: few clusters have
// one, and a cache of all endpoints is large.
type endpoints struct {
	factory informers.SharedInformerFactory
	lister  discoverylisters.EndpointSliceLister
	source  controller.Source[reconcile.Request]
	once    sync.Once
	needed  chan struct{}

	mu     sync.Mutex
	synced bool
	// waiting has the Services that asked for their nodes before the first list.
	waiting map[reconcile.Request]bool
}

// errNoEndpointsYet is the error before the first list of EndpointSlices, after which the Service is reconciled again.
var errNoEndpointsYet = errors.New("the endpoints are not listed yet")

var _ controller.Source[reconcile.Request] = (*endpoints)(nil)

func newEndpoints(factory informers.SharedInformerFactory) *endpoints {
	slices := factory.Discovery().V1().EndpointSlices()
	return &endpoints{
		factory: factory, lister: slices.Lister(), needed: make(chan struct{}),
		waiting: make(map[reconcile.Request]bool),
		source: controller.Watches(slices.Informer(), func(slice *discoveryv1.EndpointSlice) []reconcile.Request {
			name := slice.Labels[discoveryv1.LabelServiceName]
			if name == "" {
				return nil
			}
			return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: slice.Namespace, Name: name}}}
		}),
	}
}

// Name implements controller.Source.
func (e *endpoints) Name() string { return "endpoints of Services with externalTrafficPolicy Local" }

// Run implements controller.Source. Nothing exists until the endpoints are needed.
func (e *endpoints) Run(ctx context.Context, enqueuer controller.Enqueuer[reconcile.Request], synced func()) error {
	synced()
	select {
	case <-e.needed:
	case <-ctx.Done():
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer e.factory.Shutdown()
	defer cancel()
	e.factory.Start(ctx.Done())
	return e.source.Run(ctx, enqueuer, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.synced = true
		for key := range e.waiting {
			enqueuer.Add(key)
		}
		clear(e.waiting)
	})
}

// listed reports whether the endpoints are known; if not, the Service is reconciled when they are.
func (e *endpoints) listed(service reconcile.Request) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.synced {
		e.waiting[service] = true
	}
	return e.synced
}

// nodesOf returns the nodes that have a ready endpoint of the Service, or errNoEndpointsYet.
func (e *endpoints) nodesOf(service *corev1.Service) (map[string]bool, error) {
	e.once.Do(func() { close(e.needed) })
	if !e.listed(controller.RequestFor(service)) {
		return nil, errNoEndpointsYet
	}
	nodes := make(map[string]bool)
	slices, err := e.lister.EndpointSlices(service.Namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service.Name}))
	if err != nil {
		return nil, fmt.Errorf("list the endpoints of Service %s/%s: %w", service.Namespace, service.Name, err)
	}
	for _, slice := range slices {
		for _, endpoint := range slice.Endpoints {
			if endpoint.NodeName != nil && (endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready) {
				nodes[*endpoint.NodeName] = true
			}
		}
	}
	return nodes, nil
}
