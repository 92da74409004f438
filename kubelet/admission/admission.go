package admission

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	schedhelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/qos"
	"github.com/berth-dev/berth/kubelet/status"
)

// Details of a resize that is infeasible. The first is the term of kubelets before 1.36; since then the API server
// rejects such a request.
const (
	DetailNodeAllocatable = "insufficient_node_allocatable"
	DetailSwap            = "swap_limitation"
)

// ReasonUnsupported is the status reason of a Pod with a volume that this node does not support.
const ReasonUnsupported = "UnsupportedField"

// Config holds the values of an Admitter.
type Config struct {
	// MaxPods is how many Pods the node takes.
	MaxPods int64
	// AllowedUnsafeSysctls are the sysctls that Pods may set beside the safe ones; a name that ends in "*" allows all
	// names with that prefix.
	AllowedUnsafeSysctls []string
	// DeclaredFeatures are the features that the node declares in its status, sorted by name.
	DeclaredFeatures []string
	// Version is the version of Kubernetes that the node reports, like "v1.36.3"; version.Kubernetes if empty.
	Version string
	// SysFS is where sysfs is mounted; /sys if empty.
	SysFS string
}

// Deps holds what an Admitter needs. Handlers may be empty.
type Deps struct {
	// Node returns the Node object as last seen, nil if it was not seen yet.
	Node func() *corev1.Node
	// FreshNode reads the Node object from the API server: the one last seen may be older than the labels that a Pod was
	// scheduled by.
	FreshNode func() (*corev1.Node, error)
	// Allocatable returns the resources that Pods may use.
	Allocatable func() corev1.ResourceList
	// Volumes returns an error if a volume of the Pod is of a kind that the node does not support.
	Volumes func(pod *corev1.Pod) error
	// GroupsPolicy returns an error if the container runtime is known not to support the Pod's supplementalGroupsPolicy.
	GroupsPolicy func(pod *corev1.Pod) error
	// Resources returns the resource settings that the runtime gets for a container.
	Resources func(pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources
	// CheckResize returns why the CPU or the memory of a Guaranteed Pod cannot change while it runs, and a Detail of it; nil
	// for no such reason.
	CheckResize func(cpu, memory bool) (message, detail string)
	// Handlers are called for each Pod that passes all other checks.
	Handlers []lifecycle.PodAdmitHandler
	// Managed reports whether one of the Handlers gives Pods the resource piece by piece, and rejects those that it has none for: it
	// says which pieces are free. It may be nil.
	Managed func(name corev1.ResourceName) bool
}

func (d *Deps) validate() error {
	for _, dep := range []struct {
		name    string
		missing bool
	}{
		{"Node", d.Node == nil}, {"FreshNode", d.FreshNode == nil}, {"Allocatable", d.Allocatable == nil},
		{"Volumes", d.Volumes == nil}, {"GroupsPolicy", d.GroupsPolicy == nil}, {"Resources", d.Resources == nil},
	} {
		if dep.missing {
			return errors.New("admission: Deps." + dep.name + " is required")
		}
	}
	return nil
}

// Admitter checks whether the node can run a Pod. It repeats the scheduler's checks and adds those of the node itself.
type Admitter struct {
	deps     Deps
	config   Config
	features *features
}

var _ podworker.Admitter = (*Admitter)(nil)

// New returns an Admitter.
func New(deps Deps, config Config) (*Admitter, error) {
	if err := deps.validate(); err != nil {
		return nil, err
	}
	if config.SysFS == "" {
		config.SysFS = defaultSysFS
	}
	features, err := newFeatures(&config)
	if err != nil {
		return nil, err
	}
	return &Admitter{deps: deps, config: config, features: features}, nil
}

// Admit implements podworker.Admitter.
func (a *Admitter) Admit(pod *corev1.Pod, others []*corev1.Pod) *status.Failure {
	if err := a.deps.Volumes(pod); err != nil {
		return reject(ReasonUnsupported, "%v", err)
	}
	if f := checkOS(pod); f != nil {
		return f
	}
	if f := a.features.check(pod); f != nil {
		return f
	}
	if f := a.checkGroupsPolicy(pod); f != nil {
		return f
	}
	if f := checkSysctls(pod, a.config.AllowedUnsafeSysctls); f != nil {
		return f
	}
	if f := checkAppArmor(pod, a.config.SysFS); f != nil {
		return f
	}
	if f := a.checkPlacement(pod); f != nil {
		return f
	}
	if f := checkHostPorts(pod, others); f != nil {
		return f
	}
	if f := a.checkResources(pod, others); f != nil {
		for _, handler := range a.deps.Handlers {
			if counter, is := handler.(refusalCounter); is {
				counter.CountRefused(pod)
			}
		}
		return f
	}
	for _, handler := range a.deps.Handlers {
		result := handler.Admit(&lifecycle.PodAdmitAttributes{Pod: pod, OtherPods: others})
		if !result.Admit {
			return reject(result.Reason, "%s", result.Message)
		}
	}
	return nil
}

// refusalCounter is a handler whose metrics have the Pods for which the node has too few resources, too.
type refusalCounter interface {
	// CountRefused counts such a Pod. It must not block.
	CountRefused(pod *corev1.Pod)
}

// readmitter is a handler that may have lost what an earlier process has decided about a Pod.
type readmitter interface {
	// Readmit decides again what is lost. It must not block.
	Readmit(pod *corev1.Pod) lifecycle.PodAdmitResult
}

// Readmit implements podworker.Admitter.
func (a *Admitter) Readmit(pod *corev1.Pod) *status.Failure {
	for _, handler := range a.deps.Handlers {
		if again, is := handler.(readmitter); is {
			if result := again.Readmit(pod); !result.Admit {
				return reject(result.Reason, "%s", result.Message)
			}
		}
	}
	return nil
}

// Resize implements podworker.Admitter.
func (a *Admitter) Resize(granted, pod *corev1.Pod, others []*corev1.Pod) *status.Failure {
	if name := a.swapShareChanges(granted, pod); name != "" {
		return &status.Failure{Reason: corev1.PodReasonInfeasible, Detail: DetailSwap, Message: fmt.Sprintf("container %q has "+
			"a share of the node's swap that depends on its memory request and cannot change while it runs: set its "+
			"resizePolicy for memory to RestartContainer, or recreate the Pod", name)}
	}
	if f := a.checkManaged(granted, pod); f != nil {
		return f
	}
	if f := a.checkResources(pod, nil); f != nil {
		return &status.Failure{Reason: corev1.PodReasonInfeasible, Detail: DetailNodeAllocatable, Message: trimRejected(f.Message)}
	}
	if f := a.checkResources(pod, others); f != nil {
		return &status.Failure{Reason: corev1.PodReasonDeferred, Message: trimRejected(f.Message)}
	}
	return nil
}

// checkManaged rejects other resources for a Guaranteed Pod whose containers have CPUs or memory of their own.
func (a *Admitter) checkManaged(granted, pod *corev1.Pod) *status.Failure {
	if a.deps.CheckResize == nil || qos.Class(pod) != corev1.PodQOSGuaranteed {
		return nil
	}
	changed := func(name corev1.ResourceName) bool {
		for c := range podutil.Containers(&pod.Spec) {
			if before, _ := podutil.FindContainer(&granted.Spec, c.Name); before != nil {
				a, b := before.Resources.Requests[name], c.Resources.Requests[name]
				if a.Cmp(b) != 0 {
					return true
				}
			}
		}
		return false
	}
	message, detail := a.deps.CheckResize(changed(corev1.ResourceCPU), changed(corev1.ResourceMemory))
	if message == "" {
		return nil
	}
	return &status.Failure{Reason: corev1.PodReasonInfeasible, Detail: detail, Message: message}
}

// swapShareChanges returns the name of a container whose share of swap would change with its resources while it runs,
// or "".
func (a *Admitter) swapShareChanges(granted, pod *corev1.Pod) string {
	share := func(pod *corev1.Pod, c *corev1.Container) string {
		return a.deps.Resources(pod, c).GetUnified()[cm.SwapMax]
	}
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

func reject(reason, format string, args ...any) *status.Failure {
	return &status.Failure{Reason: reason, Message: rejectedPrefix + fmt.Sprintf(format, args...)}
}

// checkOS rejects a Pod of another operating system.
func checkOS(pod *corev1.Pod) *status.Failure {
	if os, ok := pod.Labels[corev1.LabelOSStable]; ok && os != string(corev1.Linux) {
		return reject("PodOSSelectorNodeLabelDoesNotMatch",
			"Failed to admit pod as the `kubernetes.io/os` label doesn't match node label")
	}
	if pod.Spec.OS != nil && pod.Spec.OS.Name != corev1.Linux {
		return reject("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
	}
	return nil
}

// checkPlacement rejects a Pod that the node's name, labels or taints keep from it. Taints do not apply to static Pods.
func (a *Admitter) checkPlacement(pod *corev1.Pod) *status.Failure {
	node := a.deps.Node()
	if node == nil {
		return nil
	}
	if pod.Spec.NodeName != "" && pod.Spec.NodeName != node.Name {
		return reject("NodeName", "Predicate NodeName failed: node(s) didn't match the requested node name")
	}
	if !a.matchesNodeAffinity(pod, node) {
		return reject("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector")
	}
	if podutil.IsStatic(pod) {
		return nil // the node's own configuration places it
	}
	taint, found := schedhelper.FindMatchingUntoleratedTaint(logr.Discard(), node.Spec.Taints, pod.Spec.Tolerations,
		func(t *corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute }, false)
	if found {
		return reject("TaintToleration", "Predicate TaintToleration failed: node(s) had untolerated taint {%s: %s}",
			taint.Key, taint.Value)
	}
	return nil
}

// matchesNodeAffinity reports whether the node has the labels that the Pod requires. Before it returns false it reads the
// Node from the API server; if that fails, the Node as last seen decides.
func (a *Admitter) matchesNodeAffinity(pod *corev1.Pod, node *corev1.Node) bool {
	required := nodeaffinity.GetRequiredNodeAffinity(pod)
	if ok, err := required.Match(node); err == nil && ok {
		return true
	}
	node, err := a.deps.FreshNode()
	if err != nil {
		return false
	}
	ok, err := required.Match(node)
	return err == nil && ok
}

// hostPort is one port of the node that a Pod uses.
type hostPort struct {
	protocol corev1.Protocol
	number   int32
}

// checkHostPorts rejects a Pod that needs a port of the node that another Pod uses.
func checkHostPorts(pod *corev1.Pod, others []*corev1.Pod) *status.Failure {
	wanted := hostPorts(pod)
	if len(wanted) == 0 {
		return nil
	}
	for _, other := range others {
		for taken, addresses := range hostPorts(other) {
			for _, ip := range addresses {
				for _, mine := range wanted[taken] {
					if ip == mine || isUnspecified(ip) || isUnspecified(mine) {
						return reject("NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for "+
							"the requested pod ports: %s %d is taken by pod %s/%s",
							taken.protocol, taken.number, other.Namespace, other.Name)
					}
				}
			}
		}
	}
	return nil
}

// isUnspecified reports whether the address stands for all others. The scheduler takes "::" for an address like any other: a Pod that it has
// placed would be refused for ever.
func isUnspecified(ip string) bool { return ip == "" || ip == "0.0.0.0" }

// hostPorts returns the ports of the node that a Pod uses, with the addresses it binds them on.
func hostPorts(pod *corev1.Pod) map[hostPort][]string {
	out := map[hostPort][]string{}
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort != 0 {
				key := hostPort{protocol: p.Protocol, number: p.HostPort}
				out[key] = append(out[key], p.HostIP)
			}
		}
	}
	for c, kind := range podutil.Containers(&pod.Spec) {
		if kind == podutil.Regular || podutil.IsSidecar(c, kind) {
			add(c)
		}
	}
	return out
}
