package page

import (
	"context"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	typedapps "k8s.io/client-go/kubernetes/typed/apps/v1"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	typeddiscovery "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

// cachedClient reads what the informers have from memory, and all else, also what an informer may not list, from the API
// server. What it returns must not be changed.
type cachedClient struct {
	kubernetes.Interface
	informers *informerSet
}

func (c cachedClient) CoreV1() typedcore.CoreV1Interface {
	return cachedCore{c.Interface.CoreV1(), c.informers}
}

func (c cachedClient) AppsV1() typedapps.AppsV1Interface {
	return cachedApps{c.Interface.AppsV1(), c.informers}
}

func (c cachedClient) DiscoveryV1() typeddiscovery.DiscoveryV1Interface {
	return cachedDiscovery{c.Interface.DiscoveryV1(), c.informers}
}

type cachedCore struct {
	typedcore.CoreV1Interface
	informers *informerSet
}

type cachedApps struct {
	typedapps.AppsV1Interface
	informers *informerSet
}

type cachedDiscovery struct {
	typeddiscovery.DiscoveryV1Interface
	informers *informerSet
}

// object is a pointer to an API object of type T.
type object[T any] interface {
	*T
	metav1.Object
}

// get returns an object of the cache.
func get[T any, P object[T]](store cache.Store, resource, namespace, name string) (P, error) {
	key := name
	if namespace != "" {
		key = namespace + "/" + name
	}
	found, ok, err := store.GetByKey(key)
	if err != nil || !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name)
	}
	return found.(P), nil
}

// list returns the objects of a namespace, of all if it is empty, that the options select by labels.
func list[T any, P object[T]](store cache.Indexer, namespace string, options metav1.ListOptions) ([]T, error) {
	selector, err := labels.Parse(options.LabelSelector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	var items []T
	err = cache.ListAllByNamespace(store, namespace, selector, func(found any) { items = append(items, *found.(P)) })
	return items, err
}

type cachedPods struct {
	typedcore.PodInterface
	store     cache.Indexer
	namespace string
}

func (c cachedCore) Pods(namespace string) typedcore.PodInterface {
	direct := c.CoreV1Interface.Pods(namespace)
	if store, ok := c.informers.storeOf(pods, namespace); ok {
		return cachedPods{direct, store, namespace}
	}
	return direct
}

func (c cachedPods) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Pod, error) {
	return get[corev1.Pod](c.store, pods, c.namespace, name)
}

// nodeOfPod is the only field that the cache selects Pods by.
const nodeOfPod = "spec.nodeName"

func (c cachedPods) List(ctx context.Context, options metav1.ListOptions) (*corev1.PodList, error) {
	selector, err := fields.ParseSelector(options.FieldSelector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	for _, requirement := range selector.Requirements() {
		if requirement.Field != nodeOfPod {
			return c.PodInterface.List(ctx, options)
		}
	}
	items, err := list[corev1.Pod](c.store, c.namespace, options)
	items = slices.DeleteFunc(items, func(pod corev1.Pod) bool { return !selector.Matches(fields.Set{nodeOfPod: pod.Spec.NodeName}) })
	return &corev1.PodList{Items: items}, err
}

type cachedClaims struct {
	typedcore.PersistentVolumeClaimInterface
	store     cache.Indexer
	namespace string
}

func (c cachedCore) PersistentVolumeClaims(namespace string) typedcore.PersistentVolumeClaimInterface {
	direct := c.CoreV1Interface.PersistentVolumeClaims(namespace)
	if store, ok := c.informers.storeOf(claims, namespace); ok {
		return cachedClaims{direct, store, namespace}
	}
	return direct
}

func (c cachedClaims) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.PersistentVolumeClaim, error) {
	return get[corev1.PersistentVolumeClaim](c.store, claims, c.namespace, name)
}

func (c cachedClaims) List(_ context.Context, options metav1.ListOptions) (*corev1.PersistentVolumeClaimList, error) {
	items, err := list[corev1.PersistentVolumeClaim](c.store, c.namespace, options)
	return &corev1.PersistentVolumeClaimList{Items: items}, err
}

type cachedEvents struct {
	typedcore.EventInterface
	store     cache.Indexer
	namespace string
}

func (c cachedCore) Events(namespace string) typedcore.EventInterface {
	direct := c.CoreV1Interface.Events(namespace)
	if store, ok := c.informers.storeOf(events, namespace); ok {
		return cachedEvents{direct, store, namespace}
	}
	return direct
}

// eventsOf begins the field selector for the events of one object.
const eventsOf = "involvedObject.uid="

func (c cachedEvents) List(ctx context.Context, options metav1.ListOptions) (*corev1.EventList, error) {
	uid, ok := strings.CutPrefix(options.FieldSelector, eventsOf)
	if !ok {
		return c.EventInterface.List(ctx, options)
	}
	found, err := c.store.ByIndex(byInvolved, uid)
	if err != nil {
		return nil, err
	}
	result := &corev1.EventList{}
	for _, event := range found {
		result.Items = append(result.Items, *event.(*corev1.Event))
	}
	return result, nil
}

type cachedServices struct {
	typedcore.ServiceInterface
	store     cache.Indexer
	namespace string
}

func (c cachedCore) Services(namespace string) typedcore.ServiceInterface {
	direct := c.CoreV1Interface.Services(namespace)
	if store, ok := c.informers.storeOf(services, namespace); ok {
		return cachedServices{direct, store, namespace}
	}
	return direct
}

func (c cachedServices) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Service, error) {
	return get[corev1.Service](c.store, services, c.namespace, name)
}

func (c cachedServices) List(_ context.Context, options metav1.ListOptions) (*corev1.ServiceList, error) {
	items, err := list[corev1.Service](c.store, c.namespace, options)
	return &corev1.ServiceList{Items: items}, err
}

type cachedNodes struct {
	typedcore.NodeInterface
	store cache.Indexer
}

func (c cachedCore) Nodes() typedcore.NodeInterface {
	direct := c.CoreV1Interface.Nodes()
	if store, ok := c.informers.store(nodes); ok {
		return cachedNodes{direct, store}
	}
	return direct
}

func (c cachedNodes) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Node, error) {
	return get[corev1.Node](c.store, nodes, "", name)
}

func (c cachedNodes) List(_ context.Context, options metav1.ListOptions) (*corev1.NodeList, error) {
	items, err := list[corev1.Node](c.store, "", options)
	return &corev1.NodeList{Items: items}, err
}

type cachedVolumes struct {
	typedcore.PersistentVolumeInterface
	store cache.Indexer
}

func (c cachedCore) PersistentVolumes() typedcore.PersistentVolumeInterface {
	direct := c.CoreV1Interface.PersistentVolumes()
	if store, ok := c.informers.store(volumes); ok {
		return cachedVolumes{direct, store}
	}
	return direct
}

func (c cachedVolumes) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.PersistentVolume, error) {
	return get[corev1.PersistentVolume](c.store, volumes, "", name)
}

func (c cachedVolumes) List(_ context.Context, options metav1.ListOptions) (*corev1.PersistentVolumeList, error) {
	items, err := list[corev1.PersistentVolume](c.store, "", options)
	return &corev1.PersistentVolumeList{Items: items}, err
}

type cachedReplicaSets struct {
	typedapps.ReplicaSetInterface
	store     cache.Indexer
	namespace string
}

func (c cachedApps) ReplicaSets(namespace string) typedapps.ReplicaSetInterface {
	direct := c.AppsV1Interface.ReplicaSets(namespace)
	if store, ok := c.informers.storeOf(replicaSets, namespace); ok {
		return cachedReplicaSets{direct, store, namespace}
	}
	return direct
}

func (c cachedReplicaSets) Get(_ context.Context, name string, _ metav1.GetOptions) (*appsv1.ReplicaSet, error) {
	return get[appsv1.ReplicaSet](c.store, replicaSets, c.namespace, name)
}

func (c cachedReplicaSets) List(_ context.Context, options metav1.ListOptions) (*appsv1.ReplicaSetList, error) {
	items, err := list[appsv1.ReplicaSet](c.store, c.namespace, options)
	return &appsv1.ReplicaSetList{Items: items}, err
}

type cachedDeployments struct {
	typedapps.DeploymentInterface
	store     cache.Indexer
	namespace string
}

func (c cachedApps) Deployments(namespace string) typedapps.DeploymentInterface {
	direct := c.AppsV1Interface.Deployments(namespace)
	if store, ok := c.informers.storeOf(deployments, namespace); ok {
		return cachedDeployments{direct, store, namespace}
	}
	return direct
}

func (c cachedDeployments) Get(_ context.Context, name string, _ metav1.GetOptions) (*appsv1.Deployment, error) {
	return get[appsv1.Deployment](c.store, deployments, c.namespace, name)
}

func (c cachedDeployments) List(_ context.Context, options metav1.ListOptions) (*appsv1.DeploymentList, error) {
	items, err := list[appsv1.Deployment](c.store, c.namespace, options)
	return &appsv1.DeploymentList{Items: items}, err
}

type cachedSlices struct {
	typeddiscovery.EndpointSliceInterface
	store     cache.Indexer
	namespace string
}

func (c cachedDiscovery) EndpointSlices(namespace string) typeddiscovery.EndpointSliceInterface {
	direct := c.DiscoveryV1Interface.EndpointSlices(namespace)
	if store, ok := c.informers.storeOf(endpointSlices, namespace); ok {
		return cachedSlices{direct, store, namespace}
	}
	return direct
}

func (c cachedSlices) List(_ context.Context, options metav1.ListOptions) (*discoveryv1.EndpointSliceList, error) {
	items, err := list[discoveryv1.EndpointSlice](c.store, c.namespace, options)
	return &discoveryv1.EndpointSliceList{Items: items}, err
}
