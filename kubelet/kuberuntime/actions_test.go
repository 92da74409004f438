package kuberuntime

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/container"
)

// epoch is when everything in these tests begins; times are seconds after it.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }

// podOf makes a Pod of main containers, init containers ("init:NAME") and sidecars ("side:NAME").
func podOf(policy corev1.RestartPolicy, names ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u1"},
		Spec:       corev1.PodSpec{RestartPolicy: policy},
	}
	for _, name := range names {
		kind, bare, ok := strings.Cut(name, ":")
		if !ok {
			bare = name
		}
		c := corev1.Container{Name: bare, Image: "image/" + bare}
		switch kind {
		case "side":
			c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		case "init":
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		case "eph":
			pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, corev1.EphemeralContainer{
				EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: bare, Image: c.Image},
			})
		default:
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		}
	}
	return pod
}

// instance is one container instance, made at created seconds and ended, if it has, one second later.
func instance(name string, state container.State, exit int32, created int) *container.ContainerStatus {
	s := &container.ContainerStatus{
		ID: fmt.Sprintf("%s-%d", name, created), Name: name, State: state, CreatedAt: at(created), ExitCode: exit,
		SpecHash: HashContainer(&corev1.Container{Name: name, Image: "image/" + name}),
	}
	if state == container.StateExited {
		s.FinishedAt = at(created + 1)
	}
	return s
}

func running(name string, created int) *container.ContainerStatus {
	return instance(name, container.StateRunning, 0, created)
}

func exited(name string, code int32, created int) *container.ContainerStatus {
	return instance(name, container.StateExited, code, created)
}

// statusOf is a Pod with one ready sandbox, made at second 10, that has an address.
func statusOf(instances ...*container.ContainerStatus) *container.PodStatus {
	slices.SortStableFunc(instances, func(a, b *container.ContainerStatus) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return &container.PodStatus{
		UID: "u1", Sandboxes: []*runtimeapi.PodSandboxStatus{sandbox("s0", 0, 10)}, Containers: instances,
	}
}

func sandbox(id string, attempt uint32, created int) *runtimeapi.PodSandboxStatus {
	return &runtimeapi.PodSandboxStatus{
		Id:        id,
		Metadata:  &runtimeapi.PodSandboxMetadata{Attempt: attempt},
		CreatedAt: at(created).UnixNano(),
		Network:   &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1"},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
}

func notReady(s *container.PodStatus) *container.PodStatus {
	s.Sandboxes[0].State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	return s
}

// describe words actions in short: "pod" and "sandbox=N" and "finished", then -NAME for a kill, xID for a removal, +NAME
// for a start (with #N for an attempt above 0, ! if it is blocking), ~NAME for a wait.
func describe(a Actions) string {
	var words []string
	if a.KillPod {
		words = append(words, "pod")
	}
	if a.Finished {
		words = append(words, "finished")
	}
	if a.RestartAll {
		words = append(words, "all")
	}
	for _, k := range a.Kill {
		words = append(words, "-"+k.Status.Name+":"+string(k.Reason))
	}
	for _, s := range a.Remove {
		words = append(words, "x"+s.ID)
	}
	if a.CreateSandbox {
		words = append(words, fmt.Sprintf("sandbox=%d", a.Attempt))
	}
	for _, s := range a.Start {
		word := "+" + s.Container.Name
		if s.Attempt > 0 {
			word += fmt.Sprintf("#%d", s.Attempt)
		}
		if s.Blocking {
			word += "!"
		}
		words = append(words, word)
	}
	for _, w := range a.Waiting {
		words = append(words, "~"+w.Container)
	}
	return strings.Join(words, " ")
}

func TestComputeActionsSandbox(t *testing.T) {
	twoReady := statusOf(running("a", 20))
	twoReady.Sandboxes = append([]*runtimeapi.PodSandboxStatus{sandbox("s1", 1, 15)}, twoReady.Sandboxes...)
	hostNet := podOf(corev1.RestartPolicyAlways, "a")
	hostNet.Spec.HostNetwork = true
	noIP := statusOf(running("a", 20))
	noIP.Sandboxes[0].Network.Ip = ""
	hostStatus := statusOf(running("a", 20))
	hostStatus.Sandboxes[0].Network = nil
	hostStatus.Sandboxes[0].Linux.Namespaces.Options.Network = runtimeapi.NamespaceMode_NODE
	ownPolicy := podOf(corev1.RestartPolicyNever, "a", "b")
	ownPolicy.Spec.Containers[0].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	ownOnFailure := podOf(corev1.RestartPolicyNever, "a", "b")
	ownOnFailure.Spec.Containers[0].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyOnFailure)
	deleted := podOf(corev1.RestartPolicyAlways, "a")
	deleted.DeletionTimestamp = &metav1.Time{Time: epoch}

	for name, c := range map[string]struct {
		pod    *corev1.Pod
		status *container.PodStatus
		want   string
	}{
		"new":                      {podOf("Always", "a", "b"), nil, "sandbox=0 +a +b"},
		"new with init":            {podOf("Always", "init:i", "init:j", "a"), nil, "sandbox=0 +i!"},
		"new with sidecars":        {podOf("Always", "side:s", "side:t", "a"), nil, "sandbox=0 +s! +t! +a"},
		"new, sidecar before init": {podOf("Always", "side:s", "init:i", "a"), nil, "sandbox=0 +s! +i!"},
		"kept":                     {podOf("Always", "a"), statusOf(running("a", 20)), ""},
		"not ready":                {podOf("Always", "a"), notReady(statusOf(running("a", 20))), "pod sandbox=1 +a#1"},
		"not ready purges inits": {podOf("Always", "init:i", "a"), notReady(statusOf(exited("i", 0, 11), exited("a", 0, 20))),
			"pod xi-11 sandbox=1 +i#1!"},
		"two ready":       {podOf("Always", "a"), twoReady, "pod sandbox=2 +a#1"},
		"no address":      {podOf("Always", "a"), noIP, "pod sandbox=1 +a#1"},
		"network changed": {hostNet, statusOf(running("a", 20)), "pod sandbox=1 +a#1"},
		"host network":    {hostNet, hostStatus, ""},
		"Never is over":   {podOf("Never", "a"), notReady(statusOf(exited("a", 1, 20))), "pod finished"},
		"Never retries a sandbox in which nothing ever was": {podOf("Never", "a"), notReady(statusOf()), "pod sandbox=1 +a"},
		"Never retries one in which nothing ever ran": {podOf("Never", "a"),
			notReady(statusOf(instance("a", container.StateCreated, 0, 20))), "pod xa-20 sandbox=1 +a"},
		"Never, but a container has its own policy": {ownPolicy, notReady(statusOf(exited("a", 1, 20), exited("b", 1, 20))),
			"pod sandbox=1 +a#1"},
		"Never, and all that may run again is done": {ownOnFailure, notReady(statusOf(exited("a", 0, 20), exited("b", 1, 20))),
			"pod finished"},
		"OnFailure skips the succeeded": {podOf("OnFailure", "a", "b"),
			notReady(statusOf(exited("a", 0, 20), exited("b", 1, 20))), "pod sandbox=1 +b#1"},
		"OnFailure, all succeeded": {podOf("OnFailure", "a"), notReady(statusOf(exited("a", 0, 20))), "pod finished"},
		"deleted":                  {deleted, notReady(statusOf(exited("a", 0, 20))), "pod finished"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ComputeActions(c.pod, c.status, Inputs{Now: at(1000)})
			require.Equal(t, c.want, describe(got))
			require.Equal(t, got.CreateSandbox && c.status != nil, got.SandboxChanged)
			require.Equal(t, got, ComputeActions(c.pod, c.status, Inputs{Now: at(1000)}), "asking twice")
		})
	}
}

func TestComputeActionsInit(t *testing.T) {
	failing := func(string) ProbeResult { return ProbeFailure }
	passed := func(string) ProbeResult { return ProbeSuccess }
	probed := func(pod *corev1.Pod) *corev1.Pod {
		pod.Spec.InitContainers[0].StartupProbe = &corev1.Probe{}
		pod.Spec.InitContainers[0].LivenessProbe = &corev1.Probe{}
		return pod
	}
	rule := podOf("Never", "init:i", "a")
	rule.Spec.InitContainers[0].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyNever)
	rule.Spec.InitContainers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{
		Action: corev1.ContainerRestartRuleActionRestart,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
			Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42},
		},
	}}
	unknown := instance("i", container.StateUnknown, 0, 11)
	outOfMemory := exited("i", 0, 11)
	outOfMemory.Reason = "OOMKilled"
	old := statusOf(exited("i", 0, 5), exited("a", 0, 7)) // both before the sandbox was made
	changed := running("s", 11)
	changed.SpecHash++

	for name, c := range map[string]struct {
		pod    *corev1.Pod
		status *container.PodStatus
		in     Inputs
		want   string
	}{
		"first":                 {podOf("Always", "init:i", "init:j", "a"), statusOf(), Inputs{}, "+i!"},
		"running":               {podOf("Always", "init:i", "init:j", "a"), statusOf(running("i", 11)), Inputs{}, ""},
		"next":                  {podOf("Always", "init:i", "init:j", "a"), statusOf(exited("i", 0, 11)), Inputs{}, "+j!"},
		"done":                  {podOf("Always", "init:i", "a"), statusOf(exited("i", 0, 11)), Inputs{}, "+a"},
		"earlier ones are gone": {podOf("Always", "init:i", "init:j", "a"), statusOf(exited("j", 0, 11)), Inputs{}, "+a"},
		"failed":                {podOf("Always", "init:i", "a"), statusOf(exited("i", 1, 11)), Inputs{}, "+i#1!"},
		"failed for good":       {podOf("Never", "init:i", "a"), statusOf(exited("i", 1, 11)), Inputs{}, "pod finished"},
		"out of memory":         {podOf("OnFailure", "init:i", "a"), statusOf(outOfMemory), Inputs{}, "+i#1!"},
		"out of memory, Never":  {podOf("Never", "init:i", "a"), statusOf(outOfMemory), Inputs{}, "pod finished"},
		"failed with a rule":    {rule, statusOf(exited("i", 42, 11)), Inputs{}, "+i#1!"},
		"failed past the rule":  {rule, statusOf(exited("i", 41, 11)), Inputs{}, "pod finished"},
		"unknown":               {podOf("Always", "init:i", "a"), statusOf(unknown), Inputs{}, "-i:Unknown +i#1!"},
		"unknown, Never":        {podOf("Never", "init:i", "a"), statusOf(unknown), Inputs{}, "pod finished"},
		"created and never started is made anew": {podOf("Always", "init:i", "a"),
			statusOf(instance("i", container.StateCreated, 0, 11)), Inputs{}, "xi-11 +i!"},
		"initialized, all inits are gone": {podOf("Always", "init:i", "a"), statusOf(running("a", 20)), Inputs{}, ""},
		"initialized, main has crashed":   {podOf("Always", "init:i", "a"), statusOf(exited("a", 1, 20)), Inputs{}, "+a#1"},
		"a new sandbox begins anew":       {podOf("Always", "init:i", "a"), old, Inputs{}, "+i#1!"},

		"sidecar is up":           {podOf("Always", "side:s", "init:i", "a"), statusOf(running("s", 11)), Inputs{}, "+i!"},
		"last sidecar is up":      {podOf("Always", "side:s", "a"), statusOf(running("s", 11)), Inputs{}, "+a"},
		"sidecar not started yet": {probed(podOf("Always", "side:s", "a")), statusOf(running("s", 11)), Inputs{}, ""},
		"sidecar started": {probed(podOf("Always", "side:s", "a")), statusOf(running("s", 11)),
			Inputs{Startup: passed}, "+a"},
		"sidecar fails its startup": {probed(podOf("Always", "side:s", "a")), statusOf(running("s", 11)),
			Inputs{Startup: failing}, "-s:StartupProbe +s#1"},
		"sidecar fails its liveness": {probed(podOf("Never", "side:s", "a")), statusOf(running("s", 11), running("a", 20)),
			Inputs{Startup: passed, Liveness: failing}, "-s:LivenessProbe +s#1"},
		"sidecar has crashed, Never": {podOf("Never", "side:s", "a"), statusOf(exited("s", 1, 11), running("a", 20)),
			Inputs{}, "+s#1"},
		"sidecar has crashed before the mains": {podOf("Always", "side:s", "a"), statusOf(exited("s", 1, 11)), Inputs{},
			"+s#1! +a"},
		"sidecar has crashed while an init runs": {podOf("Always", "side:s", "init:i", "a"),
			statusOf(exited("s", 1, 11), running("i", 12)), Inputs{}, "+s#1"},
		"sidecar is gone": {podOf("Always", "side:s", "a"), statusOf(running("a", 20)), Inputs{}, "+s"},
		"sidecar changed": {podOf("Always", "side:s", "a"), statusOf(changed, running("a", 20)), Inputs{},
			"-s:DefinitionChanged +s#1"},
		"sidecar ends with the mains": {podOf("Never", "side:s", "a"), statusOf(running("s", 11), exited("a", 0, 20)),
			Inputs{}, "pod finished"},
		"crashed sidecar does not keep the pod": {podOf("Never", "side:s", "a"),
			statusOf(exited("s", 1, 11), exited("a", 3, 20)), Inputs{}, "pod finished"},
	} {
		t.Run(name, func(t *testing.T) {
			c.in.Now = at(1000)
			require.Equal(t, c.want, describe(ComputeActions(c.pod, c.status, c.in)))
		})
	}
}

func TestComputeActionsMain(t *testing.T) {
	failing := func(string) ProbeResult { return ProbeFailure }
	probed := func(pod *corev1.Pod) *corev1.Pod {
		pod.Spec.Containers[0].LivenessProbe = &corev1.Probe{}
		return pod
	}
	own := func(policy corev1.ContainerRestartPolicy, pod *corev1.Pod) *corev1.Pod {
		pod.Spec.Containers[0].RestartPolicy = &policy
		return pod
	}
	changed := running("a", 20)
	changed.SpecHash++
	deleted := podOf("Always", "a")
	deleted.DeletionTimestamp = &metav1.Time{Time: epoch}
	debug := podOf("Always", "init:i", "a", "eph:e")
	debug.Spec.EphemeralContainers[0].TargetContainerName = "a"
	logs := func(string) (uint32, bool) { return 4, true }

	for name, c := range map[string]struct {
		pod    *corev1.Pod
		status *container.PodStatus
		in     Inputs
		want   string
	}{
		"Always, exit 0":          {podOf("Always", "a"), statusOf(exited("a", 0, 20)), Inputs{}, "+a#1"},
		"OnFailure, exit 0":       {podOf("OnFailure", "a"), statusOf(exited("a", 0, 20)), Inputs{}, "pod finished"},
		"OnFailure, exit 1":       {podOf("OnFailure", "a"), statusOf(exited("a", 1, 20)), Inputs{}, "+a#1"},
		"Never, exit 1":           {podOf("Never", "a"), statusOf(exited("a", 1, 20)), Inputs{}, "pod finished"},
		"Never, one still runs":   {podOf("Never", "a", "b"), statusOf(exited("a", 1, 20), running("b", 20)), Inputs{}, ""},
		"Never, one never ran":    {podOf("Never", "a", "b"), statusOf(exited("a", 1, 20)), Inputs{}, "+b"},
		"own Always in Never":     {own("Always", podOf("Never", "a")), statusOf(exited("a", 0, 20)), Inputs{}, "+a#1"},
		"own Never in Always":     {own("Never", podOf("Always", "a")), statusOf(exited("a", 1, 20)), Inputs{}, "pod finished"},
		"own OnFailure in Always": {own("OnFailure", podOf("Always", "a")), statusOf(exited("a", 0, 20)), Inputs{}, "pod finished"},
		"deleted":                 {deleted, statusOf(exited("a", 1, 20)), Inputs{}, "pod finished"},
		"definition changed":      {podOf("Never", "a"), statusOf(changed), Inputs{}, "-a:DefinitionChanged +a#1"},
		"liveness":                {probed(podOf("Always", "a")), statusOf(running("a", 20)), Inputs{Liveness: failing}, "-a:LivenessProbe +a#1"},
		"liveness, Never":         {probed(podOf("Never", "a")), statusOf(running("a", 20)), Inputs{Liveness: failing}, "pod finished"},
		"liveness, Never, another runs": {probed(podOf("Never", "a", "b")), statusOf(running("a", 20), running("b", 20)),
			Inputs{Liveness: failing}, "-a:LivenessProbe"},
		"unknown":                       {podOf("Always", "a"), statusOf(instance("a", container.StateUnknown, 0, 20)), Inputs{}, "-a:Unknown +a#1"},
		"created and never started":     {podOf("Always", "a"), statusOf(instance("a", container.StateCreated, 0, 20)), Inputs{}, "xa-20 +a"},
		"count goes on from the logs":   {podOf("Always", "a"), statusOf(), Inputs{LastAttempt: logs}, "+a#5"},
		"ephemeral before init is done": {debug, statusOf(running("i", 11)), Inputs{}, "+e"},
		"ephemeral stays ended":         {debug, statusOf(running("a", 20), exited("e", 1, 30)), Inputs{}, ""},
		"ephemeral that was only created": {debug, statusOf(running("a", 20), instance("e", container.StateCreated, 0, 30)),
			Inputs{}, "xe-30 +e"},
	} {
		t.Run(name, func(t *testing.T) {
			c.in.Now = at(1000)
			require.Equal(t, c.want, describe(ComputeActions(c.pod, c.status, c.in)))
		})
	}
	got := ComputeActions(debug, statusOf(running("a", 20)), Inputs{})
	require.Equal(t, "a-20", got.Start[0].TargetID)
	require.Equal(t, "s0", got.SandboxID)
}

func TestComputeActionsRestartAll(t *testing.T) {
	pod := podOf("Never", "init:i", "side:s", "a", "b")
	pod.Spec.Containers[1].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyNever)
	pod.Spec.Containers[1].RestartPolicyRules = []corev1.ContainerRestartRule{{
		Action: corev1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
			Operator: corev1.ContainerRestartRuleOnExitCodesOpNotIn, Values: []int32{0, 1},
		},
	}}
	quiet := statusOf(exited("i", 0, 11), running("s", 12), running("a", 20), exited("b", 1, 21))
	require.Equal(t, "", describe(ComputeActions(pod, quiet, Inputs{})))

	status := statusOf(exited("i", 0, 11), running("s", 12), running("a", 20), exited("b", 7, 21))
	got := ComputeActions(pod, status, Inputs{})
	require.Equal(t, "all -a:RestartAllContainers -s:RestartAllContainers xa-20 xs-12 xi-11 xb-21", describe(got))
	require.Equal(t, int64(0), *got.Kill[0].GracePeriod)

	// A crash in the middle: what is left still asks for the rest, and the source goes last.
	require.Equal(t, "all xb-21", describe(ComputeActions(pod, statusOf(exited("b", 7, 21)), Inputs{})))
	logs := func(string) (uint32, bool) { return 0, true }
	require.Equal(t, "+i#1!", describe(ComputeActions(pod, statusOf(), Inputs{LastAttempt: logs})))
}

// BenchmarkComputeActions measures the look that every event of a Pod costs when there is nothing to do.
func BenchmarkComputeActions(b *testing.B) {
	pod := podOf("Always", "side:s", "init:i", "a", "b")
	status := statusOf(running("s", 11), exited("i", 0, 12), running("a", 20), running("b", 21))
	b.ReportAllocs()
	for b.Loop() {
		ComputeActions(pod, status, Inputs{Now: at(100)})
	}
}

// TestRunningInitContainerIsResized plans a change of a regular init container's limits while it runs.
func TestRunningInitContainerIsResized(t *testing.T) {
	now, want := &runtimeapi.LinuxContainerResources{CpuShares: 20}, &runtimeapi.LinuxContainerResources{CpuShares: 40}
	initContainer := running("i", 11)
	initContainer.Resources = &runtimeapi.ContainerResources{Linux: now}
	in := Inputs{Now: at(1000), Resources: func(*corev1.Container) *runtimeapi.LinuxContainerResources { return want }}
	got := ComputeActions(podOf("Always", "init:i", "a"), statusOf(initContainer), in)
	require.Empty(t, describe(got))
	require.Len(t, got.Resize, 1)
	require.Equal(t, want, got.Resize[0].Want)
	require.Equal(t, "i", got.Resize[0].Container.Name)

	initContainer.Resources.Linux = want
	require.Empty(t, ComputeActions(podOf("Always", "init:i", "a"), statusOf(initContainer), in).Resize)
}
