package resourcemetrics

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/metrics/pkg/apis/metrics"
)

// table prints metrics for `kubectl get nodes.metrics.k8s.io`.
type table struct{}

var _ rest.TableConvertor = table{}

// ConvertToTable implements rest.TableConvertor.
func (table) ConvertToTable(_ context.Context, object, _ runtime.Object) (*metav1.Table, error) {
	t := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: "Name of the node or Pod"},
		{Name: "CPU", Type: "string", Format: "quantity", Description: "Cores in use"},
		{Name: "Memory", Type: "string", Format: "quantity", Description: "Working set"},
		{Name: "Window", Type: "string", Format: "duration", Description: "Time over which the CPU time was measured"},
	}}
	row := func(object runtime.Object, name string, used corev1.ResourceList, window metav1.Duration) {
		t.Rows = append(t.Rows, metav1.TableRow{
			Cells:  []any{name, used.Cpu().String(), used.Memory().String(), window.Duration.String()},
			Object: runtime.RawExtension{Object: object},
		})
	}
	node := func(m *metrics.NodeMetrics) { row(m, m.Name, m.Usage, m.Window) }
	pod := func(m *metrics.PodMetrics) { row(m, m.Name, total(m), m.Window) }
	switch m := object.(type) {
	case *metrics.NodeMetrics:
		node(m)
	case *metrics.NodeMetricsList:
		for i := range m.Items {
			node(&m.Items[i])
		}
	case *metrics.PodMetrics:
		pod(m)
	case *metrics.PodMetricsList:
		for i := range m.Items {
			pod(&m.Items[i])
		}
	}
	return t, nil
}

// total adds up a Pod's containers.
func total(m *metrics.PodMetrics) corev1.ResourceList {
	var cpu, memory resource.Quantity
	for i := range m.Containers {
		cpu.Add(*m.Containers[i].Usage.Cpu())
		memory.Add(*m.Containers[i].Usage.Memory())
	}
	return corev1.ResourceList{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory}
}

func resourceList(u usage) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(u.nanoCores, resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(int64(u.memory), resource.BinarySI),
	}
}

// selectors returns the selectors of a list, which select everything if they are missing.
func selectors(options *metainternalversion.ListOptions) (labels.Selector, fields.Selector) {
	byLabels, byFields := labels.Everything(), fields.Everything()
	if options != nil && options.LabelSelector != nil {
		byLabels = options.LabelSelector
	}
	if options != nil && options.FieldSelector != nil {
		byFields = options.FieldSelector
	}
	return byLabels, byFields
}
