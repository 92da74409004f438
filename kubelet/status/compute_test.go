package status_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/status"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func exited(name string, code int32, attempt uint32) *container.ContainerStatus {
	return &container.ContainerStatus{
		ID: name + "-id", SandboxID: "s", Name: name, State: container.StateExited, ExitCode: code, Attempt: attempt,
		StartedAt: now.Add(-time.Minute), FinishedAt: now.Add(-time.Second),
	}
}

func running(name string, attempt uint32) *container.ContainerStatus {
	return &container.ContainerStatus{
		ID: name + "-id", SandboxID: "s", Name: name, State: container.StateRunning, Attempt: attempt, StartedAt: now,
	}
}

func inSandbox(id string, c *container.ContainerStatus) *container.ContainerStatus {
	c.SandboxID = id
	return c
}

func held(list ...*container.ContainerStatus) *container.PodStatus {
	return &container.PodStatus{
		UID: "u", Containers: list, IPs: []string{"10.1.0.2"},
		Sandboxes: []*runtimeapi.PodSandboxStatus{{Id: "s", State: runtimeapi.PodSandboxState_SANDBOX_READY}},
	}
}

func pod(policy corev1.RestartPolicy, names ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", Name: "p", Generation: 3}}
	p.Spec.RestartPolicy = policy
	for _, name := range names {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name, Image: "i"})
	}
	return p
}

func withInit(p *corev1.Pod, sidecar bool, name string) *corev1.Pod {
	c := corev1.Container{Name: name, Image: "i"}
	if sidecar {
		always := corev1.ContainerRestartPolicyAlways
		c.RestartPolicy = &always
	}
	p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	return p
}

func TestPhase(t *testing.T) {
	const always, onFailure, never = corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever
	waiting := map[string]status.Waiting{"a": {Reason: "CrashLoopBackOff", Message: "wait"}}
	for _, c := range []struct {
		name  string
		in    status.Input
		phase corev1.PodPhase
	}{
		{"nothing yet", status.Input{Pod: pod(always, "a"), Runtime: held()}, corev1.PodPending},
		{"one of two started", status.Input{Pod: pod(always, "a", "b"), Runtime: held(running("a", 0))}, corev1.PodPending},
		{"running", status.Input{Pod: pod(always, "a"), Runtime: held(running("a", 0))}, corev1.PodRunning},
		{"crash loop", status.Input{Pod: pod(always, "a"), Runtime: held(exited("a", 1, 2)), Waiting: waiting},
			corev1.PodRunning},
		{"always restarts exit 0", status.Input{Pod: pod(always, "a"), Runtime: held(exited("a", 0, 0))}, corev1.PodRunning},
		{"onFailure done, still stopping", status.Input{Pod: pod(onFailure, "a"), Runtime: held(exited("a", 0, 0)),
			Old: corev1.PodStatus{Phase: corev1.PodRunning}}, corev1.PodRunning},
		{"onFailure done and ended", status.Input{Pod: pod(onFailure, "a"), Runtime: held(exited("a", 0, 0)), Ended: true},
			corev1.PodSucceeded},
		{"onFailure failed", status.Input{Pod: pod(onFailure, "a"), Runtime: held(exited("a", 1, 0))}, corev1.PodRunning},
		{"never failed", status.Input{Pod: pod(never, "a", "b"), Ended: true,
			Runtime: held(exited("a", 0, 0), exited("b", 1, 0))}, corev1.PodFailed},
		{"deleted, policy always, exit 0", status.Input{Pod: pod(always, "a"), Ended: true,
			Runtime: held(exited("a", 0, 0))}, corev1.PodSucceeded},
		{"deleted before it ran", status.Input{Pod: pod(always, "a"), Ended: true, Runtime: held()}, corev1.PodFailed},
		{"init running", status.Input{Pod: withInit(pod(always, "a"), false, "i"), Runtime: held(running("i", 0))},
			corev1.PodPending},
		{"init failed for good", status.Input{Pod: withInit(pod(never, "a"), false, "i"), Ended: true,
			Runtime: held(exited("i", 1, 0))}, corev1.PodFailed},
		{"sidecar alone", status.Input{Pod: withInit(pod(always, "a"), true, "i"), Runtime: held(running("i", 0))},
			corev1.PodPending},
		{"sidecar's exit code plays no part", status.Input{Pod: withInit(pod(never, "a"), true, "i"), Ended: true,
			Runtime: held(exited("i", 137, 0), exited("a", 0, 0))}, corev1.PodSucceeded},
		{"sidecar again beside a container", status.Input{Pod: withInit(pod(always, "a"), true, "i"),
			Runtime: held(exited("i", 1, 0), running("a", 0))}, corev1.PodRunning},
		{"init containers again after a boot", status.Input{Pod: withInit(pod(always, "a"), false, "i"),
			Old:     corev1.PodStatus{Phase: corev1.PodRunning},
			Runtime: held(running("i", 1), inSandbox("before", exited("a", 255, 0)))}, corev1.PodPending},
		{"terminal is never left", status.Input{Pod: pod(always, "a"), Runtime: held(running("a", 0)),
			Old: corev1.PodStatus{Phase: corev1.PodFailed}}, corev1.PodFailed},
		{"evicted", status.Input{Pod: pod(always, "a"), Runtime: held(exited("a", 0, 0)), Ended: true,
			Failure: &status.Failure{Reason: "Evicted"}}, corev1.PodFailed},
		{"preempted, exit code 0", status.Input{Pod: pod(always, "a"), Runtime: held(exited("a", 0, 0)), Ended: true,
			Failure: &status.Failure{Reason: "Preempting", ByExitCodes: true}}, corev1.PodSucceeded},
		{"preempted, exit code 143", status.Input{Pod: pod(always, "a", "b"), Runtime: held(exited("a", 0, 0), exited("b", 143, 0)), Ended: true,
			Failure: &status.Failure{Reason: "Preempting", ByExitCodes: true}}, corev1.PodFailed},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.in.Now = now
			require.Equal(t, c.phase, status.Compute(c.in).Phase)
		})
	}
}

// The runtime has no earlier instance after all containers of a Pod were restarted: the restarted container's last end is
// what the status says of the one before.
func TestEndOfARemovedInstanceIsKept(t *testing.T) {
	end := &corev1.ContainerStateTerminated{ExitCode: 7, Reason: "Error", ContainerID: "containerd://before"}
	for _, c := range []struct {
		name string
		old  corev1.ContainerStatus
		want *corev1.ContainerStateTerminated
	}{
		{"ended before", corev1.ContainerStatus{ContainerID: "containerd://before",
			State: corev1.ContainerState{Terminated: end}}, end},
		{"said already", corev1.ContainerStatus{ContainerID: "containerd://a-id",
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, LastTerminationState: corev1.ContainerState{Terminated: end}}, end},
		{"waited", corev1.ContainerStatus{
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}, LastTerminationState: corev1.ContainerState{Terminated: end}}, end},
		{"never ended", corev1.ContainerStatus{ContainerID: "containerd://before"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.old.Name = "a"
			in := status.Input{
				Pod: pod(corev1.RestartPolicyAlways, "a"), Runtime: held(running("a", 1)), RuntimeName: "containerd", Now: now,
				Old: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{c.old}},
			}
			require.Equal(t, c.want, status.Compute(in).ContainerStatuses[0].LastTerminationState.Terminated)
			in.Runtime = held(running("a", 0))
			require.Nil(t, status.Compute(in).ContainerStatuses[0].LastTerminationState.Terminated, "a first instance has no last end")
		})
	}
}

func TestHealthOfDevicesIsReportedBeforeTheStart(t *testing.T) {
	health := []corev1.ResourceStatus{{Name: "example.com/device"}}
	in := status.Input{
		Pod: pod(corev1.RestartPolicyAlways, "a"), Runtime: held(), Now: now,
		Waiting: map[string]status.Waiting{"a": {Reason: "ImagePullBackOff"}},
		Devices: func(string) []corev1.ResourceStatus { return health },
	}
	require.Equal(t, health, status.Compute(in).ContainerStatuses[0].AllocatedResourcesStatus)
}

func TestRunningPodIsReady(t *testing.T) {
	got := status.Compute(status.Input{
		Pod: pod(corev1.RestartPolicyAlways, "b", "a"), Runtime: held(running("a", 0), running("b", 2)), Prepared: true,
		RuntimeName: "containerd", HostIPs: []string{"10.0.0.1"}, Now: now,
	})
	require.True(t, podutil.IsReady(&got))
	require.Equal(t, "10.1.0.2", got.PodIP)
	require.Equal(t, []corev1.HostIP{{IP: "10.0.0.1"}}, got.HostIPs)
	require.Equal(t, int64(3), got.ObservedGeneration)
	require.Equal(t, corev1.PodQOSBestEffort, got.QOSClass)
	require.Equal(t, "a", got.ContainerStatuses[0].Name, "sorted by name")
	require.Equal(t, "containerd://b-id", got.ContainerStatuses[1].ContainerID)
	require.Equal(t, int32(2), got.ContainerStatuses[1].RestartCount)
	require.Len(t, got.Conditions, 5)
	for _, c := range got.Conditions {
		require.Equal(t, corev1.ConditionTrue, c.Status, c.Type)
	}
}

func TestTransitionTimeMovesOnlyWithTheStatus(t *testing.T) {
	in := status.Input{Pod: pod(corev1.RestartPolicyAlways, "a"), Runtime: held(), Now: now}
	in.Old = status.Compute(in)
	in.Now, in.Runtime = now.Add(time.Minute), held(running("a", 0))
	got := status.Compute(in)
	for i, c := range got.Conditions {
		if c.Status == in.Old.Conditions[i].Status {
			require.Equal(t, in.Old.Conditions[i].LastTransitionTime, c.LastTransitionTime, c.Type)
		} else {
			require.True(t, c.LastTransitionTime.Equal(&metav1.Time{Time: in.Now}), c.Type)
		}
	}
	require.Equal(t, in.Old.StartTime, got.StartTime)
}

func TestWaitingReasons(t *testing.T) {
	p := pod(corev1.RestartPolicyAlways, "a")
	reason := func(in status.Input) string {
		in.Now = now
		return status.Compute(in).ContainerStatuses[0].State.Waiting.Reason
	}
	require.Equal(t, "ContainerCreating", reason(status.Input{Pod: p, Runtime: held()}))
	require.Equal(t, "ErrImagePull", reason(status.Input{Pod: p, Runtime: held(),
		Waiting: map[string]status.Waiting{"a": {Reason: "ErrImagePull"}}}))
	require.Equal(t, "PodInitializing", reason(status.Input{
		Pod: withInit(pod(corev1.RestartPolicyAlways, "a"), false, "i"), Runtime: held()}))
	s := status.Compute(status.Input{Pod: p, Runtime: held(exited("a", 7, 1)), Now: now,
		Waiting: map[string]status.Waiting{"a": {Reason: "CrashLoopBackOff"}}}).ContainerStatuses[0]
	require.Equal(t, int32(7), s.LastTerminationState.Terminated.ExitCode, "the crash is its last state")
	require.Equal(t, int32(1), s.RestartCount)
}

func TestVanishedContainerCountsAsRestart(t *testing.T) {
	p := pod(corev1.RestartPolicyAlways, "a")
	in := status.Input{Pod: p, Runtime: held(running("a", 1)), Now: now}
	in.Old = status.Compute(in)
	in.Runtime = held()
	s := status.Compute(in).ContainerStatuses[0]
	require.Equal(t, int32(2), s.RestartCount)
	require.Equal(t, "ContainerStatusUnknown", s.LastTerminationState.Terminated.Reason)
	require.Equal(t, int32(137), s.LastTerminationState.Terminated.ExitCode)
}

func TestContainerThatIsStoppedToBeStartedAgainWaits(t *testing.T) {
	in := status.Input{
		Pod: pod(corev1.RestartPolicyNever, "a"), Runtime: held(exited("a", 0, 0)), Now: now,
		Restarting: func(id string) bool { return id == "a-id" },
	}
	got := status.Compute(in)
	s := got.ContainerStatuses[0]
	require.Nil(t, s.State.Terminated)
	require.Equal(t, "ContainerCreating", s.State.Waiting.Reason)
	require.Equal(t, "Completed", s.LastTerminationState.Terminated.Reason)
	require.Equal(t, int32(0), s.RestartCount)
	require.NotEqual(t, corev1.PodSucceeded, got.Phase)
	in.Ended = true
	got = status.Compute(in)
	require.NotNil(t, got.ContainerStatuses[0].State.Terminated)
	require.Equal(t, corev1.PodSucceeded, got.Phase)
}

func TestReadinessGatesAndForeignConditions(t *testing.T) {
	p := pod(corev1.RestartPolicyAlways, "a")
	p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "x/y"}}
	in := status.Input{Pod: p, Runtime: held(running("a", 0)), Now: now}
	got := status.Compute(in)
	require.False(t, podutil.IsReady(&got))
	p.Status.Conditions = []corev1.PodCondition{{Type: "x/y", Status: corev1.ConditionTrue}}
	got = status.Compute(in)
	require.True(t, podutil.IsReady(&got))
	require.Contains(t, got.Conditions, p.Status.Conditions[0], "what others wrote stays")
}

func TestRejected(t *testing.T) {
	got := status.Rejected(pod(corev1.RestartPolicyAlways, "a"), status.Failure{Reason: "OutOfpods", Message: "m"}, now)
	require.Equal(t, corev1.PodFailed, got.Phase)
	require.Equal(t, "OutOfpods", got.Reason)
	require.False(t, podutil.IsReady(&got))
}

func TestPodThatFailsInInitializationNeverGotToItsContainers(t *testing.T) {
	p := withInit(withInit(withInit(pod(corev1.RestartPolicyNever, "a"), false, "one"), false, "two"), false, "three")
	one, two := exited("one", 0, 0), exited("two", 1, 0)
	got := status.Compute(status.Input{Pod: p, Runtime: held(two, one), Prepared: true, Ended: true, Now: now})
	require.Equal(t, corev1.PodFailed, got.Phase)
	require.Equal(t, "PodInitializing", got.ContainerStatuses[0].State.Waiting.Reason)
	require.Equal(t, "PodInitializing", got.InitContainerStatuses[2].State.Waiting.Reason)
	require.Equal(t, int32(1), got.InitContainerStatuses[1].State.Terminated.ExitCode)
	for _, c := range got.Conditions {
		if c.Type == corev1.PodInitialized {
			require.Equal(t, corev1.ConditionFalse, c.Status)
			require.Equal(t, "containers with incomplete status: [two three]", c.Message)
		}
	}
	got = status.Compute(status.Input{
		Pod: p, Runtime: held(exited("three", 0, 0), exited("two", 0, 0), one), Prepared: true, Ended: true, Now: now,
	})
	require.Equal(t, "ContainerStatusUnknown", got.ContainerStatuses[0].State.Terminated.Reason, "its turn had come")
}

// An init container that was removed has succeeded if a container runs that starts after it; upstream's suite reads the message.
func TestRemovedInitContainerHasSucceeded(t *testing.T) {
	p := withInit(pod(corev1.RestartPolicyAlways, "a"), false, "i")
	end := &corev1.ContainerStateTerminated{Reason: "Completed", ContainerID: "containerd://i"}
	for name, c := range map[string]struct {
		old  []corev1.ContainerStatus
		want string
	}{
		"nothing is known of it": {nil, "Unable to get init container status"},
		"its end is known":       {[]corev1.ContainerStatus{{Name: "i", State: corev1.ContainerState{Terminated: end}}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := status.Compute(status.Input{
				Pod: p, Old: corev1.PodStatus{InitContainerStatuses: c.old}, Runtime: held(running("a", 0)), Now: now,
			}).InitContainerStatuses[0]
			require.True(t, got.Ready)
			require.NotNil(t, got.State.Terminated)
			require.Equal(t, "Completed", got.State.Terminated.Reason)
			require.Contains(t, got.State.Terminated.Message, c.want)
			require.Equal(t, c.old != nil, got.State.Terminated.ContainerID == end.ContainerID)
		})
	}
}

func TestContainerThatHadNotStartedWhenItsPodFailed(t *testing.T) {
	p := pod(corev1.RestartPolicyAlways, "a")
	in := status.Input{Pod: p, Runtime: held(), Now: now}
	in.Old = status.Compute(in)
	require.Equal(t, "ContainerCreating", in.Old.ContainerStatuses[0].State.Waiting.Reason)
	in.Ended, in.Failure = true, &status.Failure{Reason: "Terminated", Message: "Pod was terminated in response to imminent node shutdown."}
	got := status.Compute(in)
	require.Equal(t, corev1.PodFailed, got.Phase)
	end := got.ContainerStatuses[0].State.Terminated
	require.NotNil(t, end)
	require.Equal(t, "ContainerStatusUnknown", end.Reason)
	require.Equal(t, int32(137), end.ExitCode)

	p = withInit(p, false, "i")
	got = status.Compute(status.Input{Pod: p, Runtime: held(), Ended: true, Failure: in.Failure, Now: now})
	require.NotNil(t, got.ContainerStatuses[0].State.Waiting, "its turn had not come")
	require.NotNil(t, got.InitContainerStatuses[0].State.Waiting, "nothing has started")
}

func TestEvictedPodIsTheTargetOfADisruption(t *testing.T) {
	in := status.Input{
		Pod: pod(corev1.RestartPolicyAlways, "a"), Runtime: held(running("a", 0)), Prepared: true, Now: now,
		Failure: &status.Failure{Reason: "Evicted", Message: "full", Disruption: true},
	}
	target := func() (found []corev1.PodCondition) {
		for _, c := range status.Compute(in).Conditions {
			if c.Type == corev1.DisruptionTarget {
				found = append(found, c)
			}
		}
		return found
	}
	require.Empty(t, target(), "its containers still run")
	in.Ended, in.Runtime = true, held(exited("a", 143, 0))
	require.Len(t, target(), 1)
	require.Equal(t, "TerminationByKubelet", target()[0].Reason)
	in.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}
	require.Len(t, target(), 1)
}

// The API refuses a status with two addresses of a family, and clients take the first one for the Pod's.
func TestPodHasOneAddressOfEachFamily(t *testing.T) {
	box := held(running("a", 0))
	box.IPs = []string{"10.1.0.2", "10.2.0.2", "fd00::2"}
	s := status.Compute(status.Input{
		Pod: pod(corev1.RestartPolicyAlways, "a"), Runtime: box, HostIPs: []string{"2001:db8::1", "192.0.2.1"}, Now: now,
	})
	require.Equal(t, "fd00::2", s.PodIP)
	require.Equal(t, []corev1.PodIP{{IP: "fd00::2"}, {IP: "10.1.0.2"}}, s.PodIPs)
}

// TestContainersThatAllRestart follows what one container's exit restarts: none of them may seem to have ended for good while init
// containers run again, and none counts twice.
func TestContainersThatAllRestart(t *testing.T) {
	never := corev1.ContainerRestartPolicyNever
	p := withInit(pod(corev1.RestartPolicyNever, "a", "b", "done"), false, "i")
	p.Spec.Containers[1].RestartPolicy = &never
	p.Spec.Containers[1].RestartPolicyRules = []corev1.ContainerRestartRule{{
		Action: corev1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
			Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42},
		},
	}}
	in := status.Input{Pod: p, Now: now, Runtime: held(exited("i", 0, 0), running("a", 0), running("b", 0), exited("done", 0, 0))}
	compute := func(list ...*container.ContainerStatus) corev1.PodStatus {
		in.Runtime = held(list...)
		in.Old = status.Compute(in)
		return in.Old
	}
	in.Old = status.Compute(in)
	compute(exited("i", 0, 0), running("a", 0), exited("b", 42, 0), exited("done", 0, 0))
	compute(exited("i", 0, 0), exited("a", 137, 0), exited("b", 42, 0))
	compute(exited("b", 42, 0))
	out := compute()
	for _, s := range append(out.ContainerStatuses, out.InitContainerStatuses...) {
		require.NotNil(t, s.State.Waiting, s.Name)
		require.False(t, s.Ready, s.Name)
		require.EqualValues(t, 1, s.RestartCount, s.Name)
		require.Equal(t, "RestartingAllContainers", s.LastTerminationState.Terminated.Reason, s.Name)
	}
	require.EqualValues(t, 42, out.ContainerStatuses[1].LastTerminationState.Terminated.ExitCode)

	out = compute(running("i", 1))
	require.Equal(t, corev1.PodPending, out.Phase)
	require.NotNil(t, out.ContainerStatuses[0].State.Waiting)
	require.EqualValues(t, 1, out.InitContainerStatuses[0].RestartCount)
	require.Equal(t, "RestartingAllContainers", out.InitContainerStatuses[0].LastTerminationState.Terminated.Reason)
	out = compute(exited("i", 0, 1), running("a", 1), running("b", 1), running("done", 1))
	require.Equal(t, corev1.PodRunning, out.Phase)
	for _, s := range out.ContainerStatuses {
		require.EqualValues(t, 1, s.RestartCount, s.Name)
	}
}
