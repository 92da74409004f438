package page

import (
	"context"
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-dev/berth/explain"
)

// nodeView is a Node for the templates.
type nodeView struct {
	objectView
	Version, OS, Link string
	Pods              string
	CPU, Memory       string
	// CPUChart and MemoryChart are empty until the usage is known.
	CPUChart, MemoryChart template.HTML
	Pressures, Address    []string
}

// clusterPage shows the nodes with what they use, and how the cluster started.
func (h *hub) clusterPage(ctx context.Context, now time.Time) (*document, error) {
	h.usage.want(now)
	var views []nodeView
	for _, found := range h.informers.of[nodes].GetIndexer().List() {
		node := found.(*corev1.Node)
		explanation, err := h.explain(ctx, explain.KindNode, "", node.Name)
		if err != nil {
			return nil, err
		}
		v, err := h.newNodeView(node, explanation, now)
		if err != nil {
			return nil, err
		}
		views = append(views, v)
	}
	slices.SortFunc(views, func(a, b nodeView) int { return strings.Compare(a.Object.Name, b.Object.Name) })
	start, err := h.startPicture(ctx, now)
	if err != nil {
		return nil, err
	}
	var unseen []string
	if _, refused := h.informers.refused.Load(nodes); refused && len(views) == 0 {
		unseen = append(unseen, "nodes: the page's user may not list them")
	}
	if why := h.usage.unknown(); why != "" {
		unseen = append(unseen, why)
	}
	return &document{Title: "Cluster", Nav: "cluster", pause: slowPause, again: usagePeriod, Blocks: []block{
		{ID: "nodes", HTML: fragmentHTML("nodes", views) + fragmentHTML("unseen", unseen)},
		{ID: "start", HTML: fragmentHTML("start", start)},
	}}, nil
}

// newNodeView adds up what the Pods of the node request.
func (h *hub) newNodeView(node *corev1.Node, explanation *explain.Explanation, now time.Time) (nodeView, error) {
	v := nodeView{
		objectView: newRowView(explanation, "n-"+string(node.UID), now), Link: link(explain.KindNode, "", node.Name),
		Version: node.Status.NodeInfo.KubeletVersion, OS: node.Status.NodeInfo.OSImage,
	}
	var cpu, memory resource.Quantity
	count := 0
	h.eachPod("", func(pod *corev1.Pod) {
		if pod.Spec.NodeName != node.Name || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			return
		}
		count++
		requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}) // what the scheduler counts
		cpu.Add(*requests.Cpu())
		memory.Add(*requests.Memory())
	})
	allocatable, where := node.Status.Allocatable, ""
	if h.namespace != "" {
		where = " in namespace " + h.namespace // the node may run more
	}
	v.Pods = fmt.Sprintf("%d%s of %s", count, where, allocatable.Pods())
	v.CPU = fmt.Sprintf("%s requested%s of %s", &cpu, where, allocatable.Cpu())
	v.Memory = fmt.Sprintf("%s requested%s of %s", mebibytes(memory), where, mebibytes(*allocatable.Memory()))
	for _, condition := range node.Status.Conditions {
		if condition.Type != corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			v.Pressures = append(v.Pressures, string(condition.Type)+": "+condition.Message)
		}
	}
	for _, address := range node.Status.Addresses {
		v.Address = append(v.Address, address.Address)
	}
	var err error
	v.CPUChart, v.MemoryChart, err = h.usage.charts(node.Name, "u"+string(node.UID), allocatable.Cpu().AsApproximateFloat64(),
		allocatable.Memory().AsApproximateFloat64())
	return v, err
}

func mebibytes(q resource.Quantity) string { return fmt.Sprintf("%d MiB", q.Value()>>20) }
