package resourcemetrics

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/metrics/pkg/apis/metrics"
)

// podStorage serves the resource pods.
type podStorage struct {
	rest.TableConvertor
	pods     corelisters.PodLister
	nodes    corelisters.NodeLister
	kubelets *kubelets
}

var (
	_ rest.Storage              = (*podStorage)(nil)
	_ rest.KindProvider         = (*podStorage)(nil)
	_ rest.Getter               = (*podStorage)(nil)
	_ rest.Lister               = (*podStorage)(nil)
	_ rest.Scoper               = (*podStorage)(nil)
	_ rest.SingularNameProvider = (*podStorage)(nil)
)

// errNotRunning is why a Pod has no metrics that no kubelet reports usage of.
var errNotRunning = errors.New("its containers do not all run, or have only started")

func (*podStorage) New() runtime.Object     { return &metrics.PodMetrics{} }
func (*podStorage) NewList() runtime.Object { return &metrics.PodMetricsList{} }
func (*podStorage) Destroy()                {}
func (*podStorage) Kind() string            { return "PodMetrics" }
func (*podStorage) NamespaceScoped() bool   { return true }
func (*podStorage) GetSingularName() string { return "pod" }

// Get implements rest.Getter.
func (s *podStorage) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	namespace := genericapirequest.NamespaceValue(ctx)
	pod, err := s.pods.Pods(namespace).Get(name)
	if err != nil {
		return nil, notFound("pods", name, err)
	}
	object, err := podMetrics(pod, s.sample(ctx, []*corev1.Pod{pod}))
	if err != nil {
		return nil, notFound("pods", name, err)
	}
	return object, nil
}

// List implements rest.Lister. Pods whose usage is unknown are omitted.
func (s *podStorage) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	labelSelector, fieldSelector := selectors(options)
	all, err := s.pods.Pods(genericapirequest.NamespaceValue(ctx)).List(labelSelector)
	if err != nil {
		return nil, err
	}
	var selected []*corev1.Pod
	for _, pod := range all {
		if fieldSelector.Matches(fields.Set{"metadata.name": pod.Name, "metadata.namespace": pod.Namespace}) {
			selected = append(selected, pod)
		}
	}
	results := s.sample(ctx, selected)
	list := &metrics.PodMetricsList{Items: []metrics.PodMetrics{}}
	for _, pod := range selected {
		object, err := podMetrics(pod, results)
		if err != nil {
			klog.FromContext(ctx).V(3).Info("no metrics of Pod", "pod", klog.KObj(pod), "error", err)
			continue
		}
		list.Items = append(list.Items, *object)
	}
	return list, nil
}

// sample reads the usage of the nodes of running Pods.
func (s *podStorage) sample(ctx context.Context, pods []*corev1.Pod) map[string]result {
	wanted := make(map[string]*corev1.Node)
	var nodes []*corev1.Node
	for _, pod := range pods {
		if pod.Spec.NodeName == "" || pod.Status.Phase != corev1.PodRunning || wanted[pod.Spec.NodeName] != nil {
			continue
		}
		node, err := s.nodes.Get(pod.Spec.NodeName)
		if err != nil {
			continue // the Pod has no node any more
		}
		wanted[node.Name] = node
		nodes = append(nodes, node)
	}
	return s.kubelets.sample(ctx, nodes)
}

// podMetrics converts a Pod's usage.
func podMetrics(pod *corev1.Pod, results map[string]result) (*metrics.PodMetrics, error) {
	if pod.Spec.NodeName == "" {
		return nil, errors.New("it is not scheduled")
	}
	r, ok := results[pod.Spec.NodeName]
	if !ok {
		return nil, fmt.Errorf("%w: its phase is %s", errNotRunning, pod.Status.Phase)
	}
	if r.err != nil {
		return nil, r.err
	}
	used, ok := r.usage.pods[podKey{pod.Namespace, pod.Name}]
	_, isMirror := pod.Annotations[corev1.MirrorPodAnnotationKey] // the kubelet knows it by the UID of its manifest
	if !ok || used.uid != pod.UID && !isMirror {
		return nil, errNotRunning
	}
	object := &metrics.PodMetrics{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, Labels: pod.Labels},
	}
	add := func(name string) {
		u, ok := used.containers[name]
		if !ok {
			return
		}
		if object.Timestamp.IsZero() || u.at.Before(object.Timestamp.Time) {
			object.Timestamp = metav1.NewTime(u.at)
		}
		object.Window.Duration = max(object.Window.Duration, u.window)
		object.Containers = append(object.Containers, metrics.ContainerMetrics{Name: name, Usage: resourceList(u)})
	}
	for i := range pod.Spec.InitContainers { // sidecars
		add(pod.Spec.InitContainers[i].Name)
	}
	for i := range pod.Spec.Containers {
		if _, ok := used.containers[pod.Spec.Containers[i].Name]; !ok {
			return nil, errNotRunning
		}
		add(pod.Spec.Containers[i].Name)
	}
	object.CreationTimestamp = object.Timestamp
	return object, nil
}
