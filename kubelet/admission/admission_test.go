package admission

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/lifecycle"
)

func testPod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c"}}}}
	for _, fn := range change {
		fn(p)
	}
	return p
}

// newAdmitter returns an Admitter of a node with two CPUs, changed by change.
func newAdmitter(t *testing.T, change func(*Deps, *Config)) *Admitter {
	t.Helper()
	deps, config := Deps{
		Node: func() *corev1.Node { return nil }, FreshNode: func() (*corev1.Node, error) { return nil, errors.New("no API server") },
		Allocatable: func() corev1.ResourceList { return corev1.ResourceList{"cpu": resource.MustParse("2")} },
		Volumes:     func(*corev1.Pod) error { return nil }, GroupsPolicy: func(*corev1.Pod) error { return nil },
		Resources: func(*corev1.Pod, *corev1.Container) *runtimeapi.LinuxContainerResources { return nil },
	}, Config{MaxPods: 9, DeclaredFeatures: []string{"RestartAllContainersOnContainerExits"}, Version: "v1.36.3+berth.1"}
	change(&deps, &config)
	a, err := New(deps, config)
	require.NoError(t, err)
	return a
}

func TestMissingDependencyIsNamed(t *testing.T) {
	_, err := New(Deps{Node: func() *corev1.Node { return nil }}, Config{})
	require.EqualError(t, err, "admission: Deps.FreshNode is required")
}

func withHostPort(number int32, ip string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: number, HostIP: ip, Protocol: corev1.ProtocolTCP}}
	}
}

// withTaint makes TestAdmission's node have a taint.
func withTaint(p *corev1.Pod) { p.Labels = map[string]string{"taint": "yes"} }

func withSource(source string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{podutil.SourceAnnotation: source} }
}

func withCPU(amount string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}
	}
}

func withRequest(name corev1.ResourceName, amount string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{name: resource.MustParse(amount)}
	}
}

func TestGroupsPolicyThatTheRuntimeLacks(t *testing.T) {
	a := newAdmitter(t, func(d *Deps, _ *Config) {
		d.GroupsPolicy = func(*corev1.Pod) error {
			return errors.New("SupplementalGroupsPolicy=Strict is not supported in this node")
		}
	})
	failure := a.Admit(testPod(), nil)
	require.Equal(t, "SupplementalGroupsPolicyNotSupported", failure.Reason)
	require.Contains(t, failure.Message, "SupplementalGroupsPolicy=Strict is not supported")
}

func TestVersionThatIsNone(t *testing.T) {
	_, err := New(newAdmitter(t, func(*Deps, *Config) {}).deps, Config{Version: "yesterday"})
	require.ErrorContains(t, err, `admission: Config.Version "yesterday"`)
}

func TestAdmission(t *testing.T) {
	no := false
	two := testPod()
	for _, c := range []struct {
		name    string
		pod     *corev1.Pod
		others  []*corev1.Pod
		volumes error
		reason  string // empty if it is admitted
		says    string
	}{
		{name: "plain", pod: testPod()},
		{name: "resource claims", pod: testPod(func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{}} })},
		{name: "user namespace", pod: testPod(func(p *corev1.Pod) { p.Spec.HostUsers = &no })},
		{name: "feature that the node declares", pod: testPod(func(p *corev1.Pod) {
			p.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{
				{Action: corev1.ContainerRestartRuleActionRestartAllContainers}}
		})},
		{name: "feature that the node does not declare", pod: testPod(func(p *corev1.Pod) {
			p.Spec.HostUsers, p.Spec.HostNetwork = &no, true
		}), reason: "PodFeatureUnsupported", says: "not available: UserNamespacesHostNetworkSupport"},
		{name: "resource that others count", pod: testPod(withRequest("example.com/gpu", "1"))},
		{name: "huge pages that the node does not have", pod: testPod(withRequest("hugepages-1Gi", "1Gi")),
			reason: "OutOfhugepages-1Gi", says: "requested: 1073741824, used: 0, capacity: 0"},
		{name: "volume", pod: testPod(), volumes: errors.New("spec.volumes[x].nfs"), reason: ReasonUnsupported, says: "nfs"},
		{name: "windows", pod: testPod(func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }),
			reason: "PodOSNotSupported"},
		{name: "label of another system", pod: testPod(func(p *corev1.Pod) {
			p.Labels = map[string]string{corev1.LabelOSStable: "windows"}
		}), reason: "PodOSSelectorNodeLabelDoesNotMatch", says: "doesn't match node label"},
		{name: "label of this system", pod: testPod(func(p *corev1.Pod) {
			p.Labels = map[string]string{corev1.LabelOSStable: "linux"}
		})},
		{name: "other node", pod: testPod(func(p *corev1.Pod) { p.Spec.NodeName = "m" }), reason: "NodeName"},
		{name: "selector", pod: testPod(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"a": "b"} }),
			reason: "NodeAffinity"},
		{name: "taint", pod: testPod(withTaint), reason: "TaintToleration"},
		{name: "taint and a Pod of the API server", pod: testPod(withTaint, withSource("api")), reason: "TaintToleration"},
		{name: "taint and a static Pod of a file", pod: testPod(withTaint, withSource("file"))},
		{name: "taint and a static Pod of a URL", pod: testPod(withTaint, withSource("http"))},
		{name: "full", pod: testPod(), others: []*corev1.Pod{two, two}, reason: "OutOfpods", says: "capacity: 2"},
		{name: "cpu fits", pod: testPod(withCPU("1")), others: []*corev1.Pod{testPod(withCPU("1"))}},
		{name: "cpu", pod: testPod(withCPU("1500m")), others: []*corev1.Pod{testPod(withCPU("1"))}, reason: "OutOfcpu",
			says: "requested: 1500, used: 1000, capacity: 2000"},
		{name: "port taken", pod: testPod(withHostPort(80, "")), others: []*corev1.Pod{testPod(withHostPort(80, "10.0.0.1"))},
			reason: "NodePorts"},
		{name: "port on another address", pod: testPod(withHostPort(80, "10.0.0.2")),
			others: []*corev1.Pod{testPod(withHostPort(80, "10.0.0.1"))}},
		{name: "port on all IPv6 addresses", pod: testPod(withHostPort(80, "::")),
			others: []*corev1.Pod{testPod(withHostPort(80, "10.0.0.1"))}},
		{name: "port on all addresses and on IPv6", pod: testPod(withHostPort(80, "::")),
			others: []*corev1.Pod{testPod(withHostPort(80, "0.0.0.0"))}, reason: "NodePorts"},
		{name: "other port", pod: testPod(withHostPort(81, "")), others: []*corev1.Pod{testPod(withHostPort(80, ""))}},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
			if c.pod.Labels["taint"] != "" {
				node.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute}}
			}
			a := newAdmitter(t, func(d *Deps, config *Config) {
				d.Node, d.FreshNode = func() *corev1.Node { return node }, func() (*corev1.Node, error) { return node, nil }
				d.Volumes, config.MaxPods = func(*corev1.Pod) error { return c.volumes }, 2
			})
			failure := a.Admit(c.pod, c.others)
			if c.reason == "" {
				require.Nil(t, failure)
				return
			}
			require.NotNil(t, failure)
			require.Equal(t, c.reason, failure.Reason)
			require.True(t, strings.HasPrefix(failure.Message, "Pod was rejected: "), failure.Message)
			require.Contains(t, failure.Message, c.says)
		})
	}
}

// TestWhyResizesAreInfeasible compares the details with those that docs/nodes.md lists.
func TestWhyResizesAreInfeasible(t *testing.T) {
	const gib = 1 << 30
	options := cm.ResourceOptions{
		MemoryCapacity: 8 * gib, SwapCapacity: 4 * gib, SwapBehavior: cm.LimitedSwap, Unified: true, Swap: true,
	}
	sized := func(cpu, memory string, change ...func(*corev1.Pod)) *corev1.Pod {
		p := testPod(change...)
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory)},
			Limits:   corev1.ResourceList{"memory": resource.MustParse("6Gi")},
		}
		return p
	}
	guaranteed := func(memory string) *corev1.Pod {
		p := sized("1", memory)
		p.Spec.Containers[0].Resources.Limits = p.Spec.Containers[0].Resources.Requests
		return p
	}
	restarts := func(p *corev1.Pod) {
		p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{
			{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer},
		}
	}
	sidecar := func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "s", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways),
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"memory": resource.MustParse("1Gi")}}}}
	}
	larger := func(p *corev1.Pod) {
		sidecar(p)
		p.Spec.InitContainers[0].Resources.Requests = corev1.ResourceList{"memory": resource.MustParse("2Gi")}
	}
	details := map[string]bool{}
	for name, c := range map[string]struct {
		before, after  *corev1.Pod
		noSwap, legacy bool
		others         []*corev1.Pod
		reason, detail string
	}{
		"granted":              {before: sized("1", "1Gi"), after: sized("1500m", "1Gi")},
		"larger than the node": {before: sized("1", "1Gi"), after: sized("3", "1Gi"), reason: "Infeasible", detail: DetailNodeAllocatable},
		"no capacity now":      {before: sized("1", "1Gi"), after: sized("2", "1Gi"), others: []*corev1.Pod{sized("1", "1Gi")}, reason: "Deferred"},
		"a share of swap":      {before: sized("1", "1Gi"), after: sized("1", "2Gi"), reason: "Infeasible", detail: DetailSwap},
		"less of it":           {before: sized("1", "2Gi"), after: sized("1", "1Gi"), reason: "Infeasible", detail: DetailSwap},
		"a sidecar's share":    {before: sized("1", "1Gi", sidecar), after: sized("1", "1Gi", larger), reason: "Infeasible", detail: DetailSwap},
		"by a restart":         {before: sized("1", "1Gi", restarts), after: sized("1", "2Gi", restarts)},
		"swap is not for Pods": {before: sized("1", "1Gi"), after: sized("1", "2Gi"), noSwap: true},
		"cgroup version 1":     {before: sized("1", "1Gi"), after: sized("1", "2Gi"), legacy: true},
		"a guaranteed Pod":     {before: guaranteed("1Gi"), after: guaranteed("2Gi")},
		"its CPU":              {before: sized("1", "1Gi"), after: sized("2", "1Gi")},
		"both":                 {before: sized("1", "1Gi"), after: sized("3", "2Gi"), reason: "Infeasible", detail: DetailSwap},
	} {
		t.Run(name, func(t *testing.T) {
			opts := options
			opts.Unified = !c.legacy
			if c.noSwap {
				opts.SwapBehavior = cm.NoSwap
			}
			a := newAdmitter(t, func(d *Deps, _ *Config) {
				d.Resources = func(pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources {
					return cm.ContainerResources(pod, c, opts)
				}
			})
			failure := a.Resize(c.before, c.after, c.others)
			if c.reason == "" {
				require.Nil(t, failure)
				return
			}
			require.NotNil(t, failure)
			require.Equal(t, c.reason, failure.Reason)
			require.Equal(t, c.detail, failure.Detail)
			require.NotEmpty(t, failure.Message)
			if c.detail != "" {
				details[c.detail] = true
			}
		})
	}
	docs, err := os.ReadFile("../../docs/nodes.md")
	require.NoError(t, err)
	documented := regexp.MustCompile("(?m)^\\| `([a-z]+_[a-z_]+)` \\| .*(Pod|container)").FindAllStringSubmatch(
		string(docs)[strings.Index(string(docs), "| `reason_detail` |"):], -1)
	require.Len(t, documented, len(details))
	for _, row := range documented {
		require.True(t, details[row[1]], row[1])
	}
}

// TestAffinityIsJudgedByTheNodeAsItIs has the watch of the Node lag behind what the scheduler has seen.
func TestAffinityIsJudgedByTheNodeAsItIs(t *testing.T) {
	wants := testPod(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "fast"} })
	seen := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	now := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"disk": "fast"}}}
	var reads int
	var readErr error
	a := newAdmitter(t, func(d *Deps, _ *Config) {
		d.Node, d.FreshNode = func() *corev1.Node { return seen }, func() (*corev1.Node, error) { reads++; return now, readErr }
	})
	require.Nil(t, a.Admit(testPod(), nil))
	require.Zero(t, reads, "the Node as last seen is enough for a Pod that matches")
	require.Nil(t, a.Admit(wants, nil))
	require.Equal(t, 1, reads)
	readErr = errors.New("no route to host")
	require.Equal(t, "NodeAffinity", a.Admit(wants, nil).Reason)
	readErr, now = nil, seen
	require.Equal(t, "NodeAffinity", a.Admit(wants, nil).Reason)
}

// TestHandlersDecideAboutWhatTheyManage: the count of devices is not compared, because the handler that gives them says which are free.
func TestHandlersDecideAboutWhatTheyManage(t *testing.T) {
	a := newAdmitter(t, func(d *Deps, _ *Config) {
		d.Allocatable = func() corev1.ResourceList {
			return corev1.ResourceList{"example.com/gpu": resource.MustParse("0"), "example.com/nic": resource.MustParse("0")}
		}
		d.Managed = func(name corev1.ResourceName) bool { return name == "example.com/gpu" }
		d.Handlers = []lifecycle.PodAdmitHandler{rejecting("no healthy devices")}
	})
	failure := a.Admit(testPod(withRequest("example.com/gpu", "1")), nil)
	require.Equal(t, "UnexpectedAdmissionError", failure.Reason)
	require.Contains(t, failure.Message, "no healthy devices")
	require.Equal(t, "OutOfexample.com/nic", a.Admit(testPod(withRequest("example.com/nic", "1")), nil).Reason)
}

// TestHandlersCountWhatTheNodeIsTooSmallFor: such a Pod has the reason of the node, and no handler admits it.
func TestHandlersCountWhatTheNodeIsTooSmallFor(t *testing.T) {
	var counter refusals
	a := newAdmitter(t, func(d *Deps, _ *Config) {
		d.Allocatable = func() corev1.ResourceList { return corev1.ResourceList{"cpu": resource.MustParse("1")} }
		d.Handlers = []lifecycle.PodAdmitHandler{&counter}
	})
	require.Equal(t, "OutOfcpu", a.Admit(testPod(withRequest("cpu", "2")), nil).Reason)
	require.Equal(t, refusals{counted: 1}, counter)
	require.Nil(t, a.Admit(testPod(withRequest("cpu", "1")), nil))
	require.Equal(t, refusals{counted: 1, admitted: 1}, counter)
}

// refusals admits each Pod, and counts.
type refusals struct{ counted, admitted int }

func (r *refusals) Admit(*lifecycle.PodAdmitAttributes) lifecycle.PodAdmitResult {
	r.admitted++
	return lifecycle.PodAdmitResult{Admit: true}
}

func (r *refusals) CountRefused(*corev1.Pod) { r.counted++ }

// TestClaimedExtendedResourcesAreNotCounted: a device plugin that is gone leaves its resource with a count of zero.
func TestClaimedExtendedResourcesAreNotCounted(t *testing.T) {
	count := "0"
	a := newAdmitter(t, func(d *Deps, _ *Config) {
		d.Allocatable = func() corev1.ResourceList { return corev1.ResourceList{"example.com/gpu": resource.MustParse(count)} }
	})
	plain := testPod(withRequest("example.com/gpu", "1"))
	claimed := testPod(withRequest("example.com/gpu", "1"), func(p *corev1.Pod) {
		p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
			ResourceClaimName: "made", RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "c", ResourceName: "example.com/gpu", RequestName: "one"}},
		}
	})
	require.Nil(t, a.Admit(claimed, nil))
	require.Equal(t, "OutOfexample.com/gpu", a.Admit(plain, nil).Reason)
	count = "1"
	require.Nil(t, a.Admit(plain, []*corev1.Pod{claimed}))
}

type rejecting string

func (r rejecting) Admit(*lifecycle.PodAdmitAttributes) lifecycle.PodAdmitResult {
	return lifecycle.PodAdmitResult{Reason: "UnexpectedAdmissionError", Message: string(r)}
}
