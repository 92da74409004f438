package podworker_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/status"
)

// TestPostStartThatFails has a container whose hook fails killed, said so without what the hook wrote, and restarted.
func TestPostStartThatFails(t *testing.T) {
	f := newFixture(t)
	f.hooks.fail(&lifecycle.Error{Step: "exec", Err: errors.New("command exited with 7")})
	p := pod("a", func(p *corev1.Pod) {
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{
			Exec: &corev1.ExecAction{Command: []string{"warm"}},
		}}
	})
	f.add(p)
	s := f.waitStatus(p.UID, "waiting", func(s corev1.PodStatus) bool {
		return len(s.ContainerStatuses) > 0 && s.ContainerStatuses[0].State.Waiting != nil &&
			s.ContainerStatuses[0].State.Waiting.Reason == "PostStartHookError"
	})
	require.NotNil(t, s.ContainerStatuses[0].LastTerminationState.Terminated)
	require.Equal(t, 1, f.runtime.Calls("StopContainer"), "it is killed")
	require.Equal(t, 1, f.recorder.count("FailedPostStartHook: PostStartHook failed"))
	f.waitFor("it is started again", func() bool { f.clock.Step(time.Second); return f.runtime.Running()["main"] == 1 })
	s = f.waitStatus(p.UID, "running", running)
	require.EqualValues(t, 1, s.ContainerStatuses[0].RestartCount)
}

// A Pod without a grace period gives its containers the shortest one when they are restarted, and only the restart of all of them kills at
// once.
func TestRestartOfAContainerWithoutGraceAsksItToEnd(t *testing.T) {
	f := newFixture(t)
	f.hooks.fail(errors.New("exit 1"))
	f.add(pod("a", func(p *corev1.Pod) {
		p.Spec.TerminationGracePeriodSeconds = new(int64)
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{}}}
	}))
	f.waitFor("the container is stopped", func() bool { return len(f.runtime.StopTimeouts()) == 1 })
	require.Equal(t, []int64{kuberuntime.MinGracePeriod}, f.runtime.StopTimeouts())
}

// TestEventsSayTheContainer holds what the events of containers are about.
func TestEventsSayTheContainer(t *testing.T) {
	f := newFixture(t)
	p := pod("a", func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "first", Image: "app:1"}}
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: "look", Image: "app:1",
		}}}
	})
	f.add(p)
	f.waitFor("init runs", func() bool { return f.runtime.Running()["first"] == 1 })
	f.runtime.Exit("first", 0)
	f.waitStatus(p.UID, "running", running)
	f.waitFor("all have an event", func() bool { return len(f.recorder.fields("Started")) == 3 })
	require.ElementsMatch(t, []string{
		"spec.initContainers{first}", "spec.ephemeralContainers{look}", "spec.containers{main}",
	}, f.recorder.fields("Started"))
	f.manager.Evict(p.UID, status.Failure{Reason: "Evicted", Message: "for the test"}, nil)
	f.waitFor("it is stopped", func() bool { return len(f.recorder.fields("Killing")) > 0 })
	require.Contains(t, []string{"spec.containers{main}", "spec.ephemeralContainers{look}"}, f.recorder.fields("Killing")[0])
}

// TestPreStopHookGoesOnUntilItsContainerHasStopped has a hook that outlasts the grace period: it ends with the container, not before.
func TestPreStopHookGoesOnUntilItsContainerHasStopped(t *testing.T) {
	f := newFixture(t)
	f.hooks.block = make(chan struct{})
	p := pod("a", func(p *corev1.Pod) {
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{
			Exec: &corev1.ExecAction{Command: []string{"drain"}},
		}}
	})
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	stop := f.runtime.Block("StopContainer")
	defer stop()
	f.manager.HandlePod(config.Change{Op: config.Delete, Pod: deleted(p)})
	f.waitFor("the hook runs", func() bool { return f.hooks.blocked.Load() == 1 })
	f.waitFor("the container is being stopped", func() bool {
		f.clock.Step(10 * time.Second)
		return f.runtime.Calls("StopContainer") == 1
	})
	require.Zero(t, f.hooks.canceled.Load())
	stop()
	f.waitFor("finished", func() bool { return f.statuses.isFinished(p.UID) })
	require.EqualValues(t, 1, f.hooks.canceled.Load())
}

// A shorter grace period replaces the stop under way. The hook that it cuts off runs again: its work is not done.
func TestPreStopHookThatIsCutOffRunsAgain(t *testing.T) {
	f := newFixture(t)
	f.hooks.block = make(chan struct{})
	p := pod("a", func(p *corev1.Pod) {
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{
			Exec: &corev1.ExecAction{Command: []string{"drain"}},
		}}
	})
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	f.manager.HandlePod(config.Change{Op: config.Delete, Pod: deleted(p)})
	f.waitFor("the hook runs", func() bool { return f.hooks.blocked.Load() == 1 })
	shorter := deleted(p)
	*shorter.DeletionGracePeriodSeconds = 20
	f.manager.HandlePod(config.Change{Op: config.Delete, Pod: shorter})
	f.waitFor("the hook runs again", func() bool { return f.hooks.blocked.Load() == 2 })
	require.EqualValues(t, 1, f.hooks.canceled.Load())
	require.Empty(t, f.runtime.StopTimeouts(), "the container waits for it")
	close(f.hooks.block)
	f.waitFor("finished", func() bool { return f.statuses.isFinished(p.UID) })
	require.EqualValues(t, 2, f.hooks.blocked.Load())
	require.Equal(t, []int64{20}, f.runtime.StopTimeouts())
	require.Zero(t, f.recorder.count("FailedPreStopHook: PreStopHook failed"))
}

// TestRestartAllContainersCondition follows the condition from a container's exit to the Pod's new start.
func TestRestartAllContainersCondition(t *testing.T) {
	f := newFixture(t)
	never := corev1.ContainerRestartPolicyNever
	p := pod("a", func(p *corev1.Pod) {
		p.Spec.Containers[0].RestartPolicy = &never
		p.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{
			Action: corev1.ContainerRestartRuleActionRestartAllContainers,
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
				Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42},
			},
		}}
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "beside", Image: "app:1"})
	})
	restarting := func(want corev1.ConditionStatus) func(corev1.PodStatus) bool {
		return func(s corev1.PodStatus) bool {
			for _, c := range s.Conditions {
				if c.Type == corev1.AllContainersRestarting {
					return c.Status == want && (want == corev1.ConditionFalse || c.Reason == "RestartAllContainersStarted")
				}
			}
			return false
		}
	}
	f.add(p)
	s := f.waitStatus(p.UID, "running", running)
	require.True(t, restarting(corev1.ConditionFalse)(s))
	release := f.runtime.Block("RemoveContainer")
	defer release()
	f.runtime.Exit("main", 42)
	f.waitStatus(p.UID, "restarting", restarting(corev1.ConditionTrue))
	release()
	f.waitStatus(p.UID, "runs again", func(s corev1.PodStatus) bool {
		return running(s) && restarting(corev1.ConditionFalse)(s)
	})
	require.Equal(t, 4, f.runtime.Calls("CreateContainer"), "both are made anew")
	require.Equal(t, []int64{kuberuntime.MinGracePeriod}, f.runtime.StopTimeouts(), "the other one has time to end")
	var removed []string
	for _, c := range s.ContainerStatuses {
		removed = append(removed, "a "+strings.TrimPrefix(c.ContainerID, "containerd://"))
	}
	f.builder.mu.Lock()
	require.ElementsMatch(t, removed, f.builder.removedCgroups, "the runtime may not have removed their cgroups")
	f.builder.mu.Unlock()

	f.add(pod("b"))
	s = f.waitStatus("uid-b", "running", running)
	for _, c := range s.Conditions {
		require.NotEqual(t, corev1.AllContainersRestarting, c.Type, "it says nothing of Pods that cannot do so")
	}
}

// The runtime has forgotten an instance of a container, whose processes run, perhaps: its cgroup says so. They end before the next instance is
// made, and only they.
func TestInstancesThatTheRuntimeHasLostEndBeforeTheNextStarts(t *testing.T) {
	f := newFixture(t)
	p := pod("a")
	f.add(p)
	s := f.waitStatus(p.UID, "running", running)
	require.Empty(t, f.builder.removed())
	id := strings.TrimPrefix(s.ContainerStatuses[0].ContainerID, "containerd://")
	f.builder.mu.Lock()
	f.builder.cgroups = []string{id, "lost"}
	f.builder.mu.Unlock()
	f.runtime.Exit("main", 1)
	f.waitStatus(p.UID, "runs again", func(s corev1.PodStatus) bool { return running(s) && s.ContainerStatuses[0].RestartCount == 1 })
	require.Contains(t, f.builder.removed(), "a lost")
	require.NotContains(t, f.builder.removed(), "a "+id)
}
