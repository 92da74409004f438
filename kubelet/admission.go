package kubelet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
	schedhelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/status"
)

// admission decides which Pods the node takes. It is a check of the scheduler's work, and of what this node agent
// can do at all.
type admission struct {
	// node is the Node object as last seen, nil if it was not seen yet; allocatable is what Pods may use.
	node        func() *corev1.Node
	allocatable func() corev1.ResourceList
	// volumes says whether the Pod's volumes are of kinds that can be set up.
	volumes func(pod *corev1.Pod) error
	maxPods int64
	// unsafeSysctls are the kernel parameters that Pods may set beside the safe ones.
	unsafeSysctls []string
	// fresh reads the Node object anew: what was seen may be older than the labels that a Pod was placed by.
	fresh func() (*corev1.Node, error)
	// sys is the machine's /sys.
	sys string
	// resources is what the runtime is told that a container may use.
	resources func(pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources
}

var _ podworker.Admitter = (*admission)(nil)

// Admit implements podworker.Admitter.
func (a *admission) Admit(pod *corev1.Pod, others []*corev1.Pod) *status.Failure {
	if message := refuse(pod); message != "" {
		return rejected(ReasonUnsupported, "%s", message)
	}
	if err := a.volumes(pod); err != nil {
		return rejected(ReasonUnsupported, "%v", err)
	}
	if f := wrongOS(pod); f != nil {
		return f
	}
	if f := sysctls(pod, a.unsafeSysctls); f != nil {
		return f
	}
	if f := appArmor(pod, a.sys); f != nil {
		return f
	}
	if f := a.place(pod); f != nil {
		return f
	}
	if f := ports(pod, others); f != nil {
		return f
	}
	return a.fit(pod, others)
}

// Resize implements podworker.Admitter.
func (a *admission) Resize(granted, pod *corev1.Pod, others []*corev1.Pod) *status.Failure {
	if name := a.swaps(granted, pod); name != "" {
		return &status.Failure{Reason: corev1.PodReasonInfeasible, Detail: needsSwap, Message: fmt.Sprintf("container %q has "+
			"a share of the node's swap that goes by its request of memory, and cannot change while it runs: give it the "+
			"resizePolicy RestartContainer for memory, or make the pod anew", name)}
	}
	if f := a.fit(pod, nil); f != nil {
		return &status.Failure{Reason: corev1.PodReasonInfeasible, Detail: tooLarge, Message: trimRejected(f.Message)}
	}
	if f := a.fit(pod, others); f != nil {
		return &status.Failure{Reason: corev1.PodReasonDeferred, Message: trimRejected(f.Message)}
	}
	return nil
}

// swaps names a container whose share of swap would change with its resources while it runs, empty if there is none.
func (a *admission) swaps(granted, pod *corev1.Pod) string {
	share := func(pod *corev1.Pod, c *corev1.Container) string { return a.resources(pod, c).GetUnified()[cm.SwapMax] }
	changed := func(before, now []corev1.Container) string {
		for i := range now {
			c := &now[i]
			at := slices.IndexFunc(before, func(b corev1.Container) bool { return b.Name == c.Name })
			if at >= 0 && !kuberuntime.RestartsOnResize(c, corev1.ResourceMemory) && share(granted, &before[at]) != share(pod, c) {
				return c.Name
			}
		}
		return ""
	}
	return cmp.Or(changed(granted.Spec.Containers, pod.Spec.Containers),
		changed(granted.Spec.InitContainers, pod.Spec.InitContainers))
}

func trimRejected(message string) string { return strings.TrimPrefix(message, rejectedPrefix) }

const rejectedPrefix = "Pod was rejected: "

func rejected(reason, format string, args ...any) *status.Failure {
	return &status.Failure{Reason: reason, Message: rejectedPrefix + fmt.Sprintf(format, args...)}
}

func wrongOS(pod *corev1.Pod) *status.Failure {
	if os, ok := pod.Labels[corev1.LabelOSStable]; ok && os != string(corev1.Linux) {
		return rejected("PodOSSelectorNodeLabelDoesNotMatch",
			"Failed to admit pod as the `kubernetes.io/os` label doesn't match node label")
	}
	if pod.Spec.OS != nil && pod.Spec.OS.Name != corev1.Linux {
		return rejected("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
	}
	return nil
}

// place checks that the Pod may be on this node by name, labels and taints.
func (a *admission) place(pod *corev1.Pod) *status.Failure {
	node := a.node()
	if node == nil {
		return nil
	}
	if pod.Spec.NodeName != "" && pod.Spec.NodeName != node.Name {
		return rejected("NodeName", "Predicate NodeName failed: node(s) didn't match the requested node name")
	}
	if !a.suits(pod, node) {
		return rejected("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector")
	}
	taint, found := schedhelper.FindMatchingUntoleratedTaint(logr.Discard(), node.Spec.Taints, pod.Spec.Tolerations,
		func(t *corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute }, false)
	if found {
		return rejected("TaintToleration", "Predicate TaintToleration failed: node(s) had untolerated taint {%s: %s}",
			taint.Key, taint.Value)
	}
	return nil
}

// suits tells whether the node has the labels that the Pod asks for. Before it says no it reads the Node anew; if that
// cannot be, what was seen counts.
func (a *admission) suits(pod *corev1.Pod, node *corev1.Node) bool {
	wanted := nodeaffinity.GetRequiredNodeAffinity(pod)
	if ok, err := wanted.Match(node); err == nil && ok {
		return true
	}
	node, err := a.fresh()
	if err != nil {
		return false
	}
	ok, err := wanted.Match(node)
	return err == nil && ok
}

// port is one port of the node that a Pod claims.
type port struct {
	protocol corev1.Protocol
	number   int32
}

// ports checks that no other Pod has a port of the node that the Pod wants.
func ports(pod *corev1.Pod, others []*corev1.Pod) *status.Failure {
	wanted := hostPorts(pod)
	if len(wanted) == 0 {
		return nil
	}
	for _, other := range others {
		for taken, addresses := range hostPorts(other) {
			for _, ip := range addresses {
				for _, mine := range wanted[taken] {
					if ip == mine || anyAddress(ip) || anyAddress(mine) {
						return rejected("NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for "+
							"the requested pod ports: %s %d is taken by pod %s/%s",
							taken.protocol, taken.number, other.Namespace, other.Name)
					}
				}
			}
		}
	}
	return nil
}

func anyAddress(ip string) bool { return ip == "" || ip == "0.0.0.0" || ip == "::" }

// hostPorts are the ports of the node that a Pod claims, with the addresses it wants them on.
func hostPorts(pod *corev1.Pod) map[port][]string {
	out := map[port][]string{}
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort != 0 {
				key := port{protocol: p.Protocol, number: p.HostPort}
				out[key] = append(out[key], p.HostIP)
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		if podutil.IsSidecar(&pod.Spec.InitContainers[i], podutil.Init) {
			add(&pod.Spec.InitContainers[i])
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return out
}

// fit checks that the node has room for the Pod.
func (a *admission) fit(pod *corev1.Pod, others []*corev1.Pod) *status.Failure {
	if used := int64(len(others)); used+1 > a.maxPods {
		return insufficient(corev1.ResourcePods, 1, used, a.maxPods)
	}
	allocatable := a.allocatable()
	used := corev1.ResourceList{}
	for _, other := range others {
		for name, quantity := range resource.PodRequests(other, resource.PodResourcesOptions{}) {
			sum := used[name]
			sum.Add(quantity)
			used[name] = sum
		}
	}
	for name, wanted := range resource.PodRequests(pod, resource.PodResourcesOptions{}) {
		limit, known := allocatable[name]
		if !known || wanted.IsZero() {
			continue // the node does not count it
		}
		sum := used[name]
		total := sum.DeepCopy()
		total.Add(wanted)
		if total.Cmp(limit) > 0 {
			if name == corev1.ResourceCPU {
				return insufficient(name, wanted.MilliValue(), sum.MilliValue(), limit.MilliValue())
			}
			return insufficient(name, wanted.Value(), sum.Value(), limit.Value())
		}
	}
	return nil
}

func insufficient(name corev1.ResourceName, requested, used, capacity int64) *status.Failure {
	return rejected("OutOf"+string(name), "Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
		name, requested, used, capacity)
}
