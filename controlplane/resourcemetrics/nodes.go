package resourcemetrics

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/metrics/pkg/apis/metrics"
)

// nodeStorage serves the resource nodes.
type nodeStorage struct {
	rest.TableConvertor
	nodes    corelisters.NodeLister
	kubelets *kubelets
}

var (
	_ rest.Storage              = (*nodeStorage)(nil)
	_ rest.KindProvider         = (*nodeStorage)(nil)
	_ rest.Getter               = (*nodeStorage)(nil)
	_ rest.Lister               = (*nodeStorage)(nil)
	_ rest.Scoper               = (*nodeStorage)(nil)
	_ rest.SingularNameProvider = (*nodeStorage)(nil)
)

func (*nodeStorage) New() runtime.Object     { return &metrics.NodeMetrics{} }
func (*nodeStorage) NewList() runtime.Object { return &metrics.NodeMetricsList{} }
func (*nodeStorage) Destroy()                {}
func (*nodeStorage) Kind() string            { return "NodeMetrics" }
func (*nodeStorage) NamespaceScoped() bool   { return false }
func (*nodeStorage) GetSingularName() string { return "node" }

// Get implements rest.Getter.
func (s *nodeStorage) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	node, err := s.nodes.Get(name)
	if err != nil {
		return nil, notFound("nodes", name, err)
	}
	r := s.kubelets.sample(ctx, []*corev1.Node{node})[name]
	object, err := nodeMetrics(node, r)
	if err != nil {
		return nil, notFound("nodes", name, err)
	}
	return object, nil
}

// List implements rest.Lister. Nodes whose usage is unknown are omitted.
func (s *nodeStorage) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	labelSelector, fieldSelector := selectors(options)
	all, err := s.nodes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	s.kubelets.forgetAllBut(all)
	var selected []*corev1.Node
	for _, node := range all {
		if labelSelector.Matches(labels.Set(node.Labels)) && fieldSelector.Matches(fields.Set{"metadata.name": node.Name}) {
			selected = append(selected, node)
		}
	}
	results := s.kubelets.sample(ctx, selected)
	list := &metrics.NodeMetricsList{Items: []metrics.NodeMetrics{}}
	for _, node := range selected {
		object, err := nodeMetrics(node, results[node.Name])
		if err != nil {
			klog.FromContext(ctx).V(1).Info("no metrics of node", "node", node.Name, "error", err)
			continue
		}
		list.Items = append(list.Items, *object)
	}
	return list, nil
}

// nodeMetrics converts a node's usage.
func nodeMetrics(node *corev1.Node, r result) (*metrics.NodeMetrics, error) {
	if r.err != nil {
		return nil, r.err
	}
	if r.usage.node == nil {
		return nil, fmt.Errorf("the kubelet of node %q reports no usage of the node", node.Name)
	}
	u := *r.usage.node
	return &metrics.NodeMetrics{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: node.Labels, CreationTimestamp: metav1.NewTime(u.at)},
		Timestamp:  metav1.NewTime(u.at), Window: metav1.Duration{Duration: u.window}, Usage: resourceList(u),
	}, nil
}

// notFound is the error for an object without metrics, which clients take for "not yet", and says why.
func notFound(resource, name string, why error) error {
	err := errors.NewNotFound(metrics.Resource(resource), name)
	err.ErrStatus.Message = fmt.Sprintf("no metrics of %s %q: %v", resource, name, why)
	return err
}
