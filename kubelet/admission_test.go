package kubelet

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/cm"
)

func testPod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c"}}}}
	for _, fn := range change {
		fn(p)
	}
	return p
}

func hostPort(number int32, ip string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: number, HostIP: ip, Protocol: corev1.ProtocolTCP}}
	}
}

func cpu(amount string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}
	}
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
		{name: "resource claims", pod: testPod(func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{}} }),
			reason: ReasonUnsupported, says: "spec.resourceClaims"},
		{name: "user namespace", pod: testPod(func(p *corev1.Pod) { p.Spec.HostUsers = &no })},
		{name: "container's claim", pod: testPod(func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{}}
		}), reason: ReasonUnsupported, says: "spec.containers[0].resources.claims"},
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
		{name: "taint", pod: testPod(func(p *corev1.Pod) { p.Labels = map[string]string{"taint": "yes"} }),
			reason: "TaintToleration"},
		{name: "full", pod: testPod(), others: []*corev1.Pod{two, two}, reason: "OutOfpods", says: "capacity: 2"},
		{name: "cpu fits", pod: testPod(cpu("1")), others: []*corev1.Pod{testPod(cpu("1"))}},
		{name: "cpu", pod: testPod(cpu("1500m")), others: []*corev1.Pod{testPod(cpu("1"))}, reason: "OutOfcpu",
			says: "requested: 1500, used: 1000, capacity: 2000"},
		{name: "port taken", pod: testPod(hostPort(80, "")), others: []*corev1.Pod{testPod(hostPort(80, "10.0.0.1"))},
			reason: "NodePorts"},
		{name: "port on another address", pod: testPod(hostPort(80, "10.0.0.2")),
			others: []*corev1.Pod{testPod(hostPort(80, "10.0.0.1"))}},
		{name: "other port", pod: testPod(hostPort(81, "")), others: []*corev1.Pod{testPod(hostPort(80, ""))}},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
			if c.pod.Labels["taint"] != "" {
				node.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute}}
			}
			a := &admission{
				node:        func() *corev1.Node { return node },
				allocatable: func() corev1.ResourceList { return corev1.ResourceList{"cpu": resource.MustParse("2")} },
				volumes:     func(*corev1.Pod) error { return c.volumes },
				maxPods:     2,
				fresh:       func() (*corev1.Node, error) { return node, nil },
			}
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

// TestWhyResizesAreInfeasible holds the details that docs/nodes.md lists, and that there are no others.
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
		"larger than the node": {before: sized("1", "1Gi"), after: sized("3", "1Gi"), reason: "Infeasible", detail: tooLarge},
		"no room now":          {before: sized("1", "1Gi"), after: sized("2", "1Gi"), others: []*corev1.Pod{sized("1", "1Gi")}, reason: "Deferred"},
		"a share of swap":      {before: sized("1", "1Gi"), after: sized("1", "2Gi"), reason: "Infeasible", detail: needsSwap},
		"less of it":           {before: sized("1", "2Gi"), after: sized("1", "1Gi"), reason: "Infeasible", detail: needsSwap},
		"a sidecar's share":    {before: sized("1", "1Gi", sidecar), after: sized("1", "1Gi", larger), reason: "Infeasible", detail: needsSwap},
		"by a restart":         {before: sized("1", "1Gi", restarts), after: sized("1", "2Gi", restarts)},
		"swap is not for Pods": {before: sized("1", "1Gi"), after: sized("1", "2Gi"), noSwap: true},
		"old control groups":   {before: sized("1", "1Gi"), after: sized("1", "2Gi"), legacy: true},
		"a guaranteed Pod":     {before: guaranteed("1Gi"), after: guaranteed("2Gi")},
		"its CPU":              {before: sized("1", "1Gi"), after: sized("2", "1Gi")},
		"both":                 {before: sized("1", "1Gi"), after: sized("3", "2Gi"), reason: "Infeasible", detail: needsSwap},
	} {
		t.Run(name, func(t *testing.T) {
			opts := options
			opts.Unified = !c.legacy
			if c.noSwap {
				opts.SwapBehavior = cm.NoSwap
			}
			a := &admission{
				allocatable: func() corev1.ResourceList { return corev1.ResourceList{"cpu": resource.MustParse("2")} }, maxPods: 9,
				resources: func(pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources {
					return cm.ContainerResources(pod, c, opts)
				},
			}
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
	docs, err := os.ReadFile("../docs/nodes.md")
	require.NoError(t, err)
	told := regexp.MustCompile("(?m)^\\| `([a-z]+_[a-z_]+)` \\| .*(Pod|container)").FindAllStringSubmatch(
		string(docs)[strings.Index(string(docs), "| `reason_detail` |"):], -1)
	require.Len(t, told, len(details))
	for _, row := range told {
		require.True(t, details[row[1]], row[1])
	}
}

// TestAffinityIsJudgedByTheNodeAsItIs lets the watch of the Node be behind what the scheduler has seen.
func TestAffinityIsJudgedByTheNodeAsItIs(t *testing.T) {
	wants := testPod(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "fast"} })
	seen := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	now := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"disk": "fast"}}}
	var asked int
	var away error
	a := &admission{
		node: func() *corev1.Node { return seen }, allocatable: func() corev1.ResourceList { return nil },
		volumes: func(*corev1.Pod) error { return nil }, maxPods: 2,
		fresh: func() (*corev1.Node, error) { asked++; return now, away },
	}
	require.Nil(t, a.Admit(testPod(), nil))
	require.Zero(t, asked, "what is seen is enough for a Pod that fits")
	require.Nil(t, a.Admit(wants, nil))
	require.Equal(t, 1, asked)
	away = errors.New("no route to host")
	require.Equal(t, "NodeAffinity", a.Admit(wants, nil).Reason)
	away, now = nil, seen
	require.Equal(t, "NodeAffinity", a.Admit(wants, nil).Reason)
}

func TestAppArmor(t *testing.T) {
	const localhost = corev1.AppArmorProfileTypeLocalhost
	profile := func(kind corev1.AppArmorProfileType, name string) *corev1.Pod {
		return testPod(func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
				AppArmorProfile: &corev1.AppArmorProfile{Type: kind, LocalhostProfile: &name},
			}
		})
	}
	write := func(path, content string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	sys := t.TempDir()
	require.Nil(t, appArmor(testPod(), sys))
	require.Nil(t, appArmor(profile(corev1.AppArmorProfileTypeUnconfined, ""), sys))
	failure := appArmor(profile(corev1.AppArmorProfileTypeRuntimeDefault, ""), sys)
	require.Equal(t, "AppArmor", failure.Reason)
	require.Equal(t, "Pod was rejected: Cannot enforce AppArmor: AppArmor is not enabled on the host", failure.Message)
	begun := profile(corev1.AppArmorProfileTypeRuntimeDefault, "")
	begun.Status.Phase = corev1.PodRunning
	require.Nil(t, appArmor(begun, sys), "it has passed once")

	write(filepath.Join(sys, "module/apparmor/parameters/enabled"), "Y\n")
	require.Nil(t, appArmor(profile(corev1.AppArmorProfileTypeRuntimeDefault, ""), sys))
	require.Contains(t, appArmor(profile(localhost, " "), sys).Message, "no localhostProfile")
	require.Nil(t, appArmor(profile(localhost, "web"), sys), "the kernel does not show what it has")
	write(filepath.Join(sys, "kernel/security/apparmor/profiles"), "/usr/bin/man (enforce)\nweb server (complain)\n")
	require.Nil(t, appArmor(profile(localhost, "web server"), sys))
	require.Contains(t, appArmor(profile(localhost, "web"), sys).Message, `profile "web" is not loaded`)
	whole := testPod(func(p *corev1.Pod) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{AppArmorProfile: &corev1.AppArmorProfile{Type: localhost}}
	})
	require.NotNil(t, appArmor(whole, sys), "a Pod's own")
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []struct{ cfg, says string }{{"/x/../y", "Config.RootDir"}, {"", "Config.RootDir"}} {
		_, err := New(Config{RootDir: c.cfg, PodLogsDir: "/logs", NodeName: "n"}, Deps{})
		require.ErrorContains(t, err, c.says)
	}
	_, err := New(Config{RootDir: "/a", PodLogsDir: "/logs", NodeName: "n"}, Deps{})
	require.ErrorContains(t, err, "Config.NodeIPs")
}
