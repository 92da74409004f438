package podworker_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/status"
)

// preemptor has the Pod named critical preempt all others.
type preemptor struct {
	mu   sync.Mutex
	seen []types.UID // the others of the critical Pod
}

func (p *preemptor) Preempt(pod *corev1.Pod, others []*corev1.Pod) podworker.Preemption {
	if pod.Name != "critical" {
		return podworker.Preemption{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = nil
	for _, other := range others {
		p.seen = append(p.seen, other.UID)
	}
	return podworker.Preemption{Victims: others, Signal: "cpu"}
}

// TestCriticalPodStartsWhenItsVictimsHaveEnded admits a critical Pod that preempts another one, whose preStop hook takes a while.
func TestCriticalPodStartsWhenItsVictimsHaveEnded(t *testing.T) {
	f := newFixture(t)
	f.hooks.block = make(chan struct{})
	victim := pod("victim", func(p *corev1.Pod) {
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{}}}
	})
	f.add(victim)
	f.waitStatus(victim.UID, "victim runs", running)
	critical := pod("critical", func(p *corev1.Pod) { p.Spec.Containers[0].Name = "critical" })
	f.add(critical)
	f.waitFor("the hook of the victim runs", func() bool { return f.hooks.blocked.Load() == 1 })
	require.Equal(t, []types.UID{victim.UID}, f.preempts.seen)
	require.Zero(t, f.runtime.Running()["critical"], "the victim still runs")
	close(f.hooks.block)
	f.waitStatus(critical.UID, "the critical Pod runs", running)
	ended := f.waitStatus(victim.UID, "the victim has ended", func(s corev1.PodStatus) bool { return podutil.IsTerminal(&s) })
	require.Equal(t, corev1.PodFailed, ended.Phase, "its container was killed")
	require.Equal(t, "Preempting", ended.Reason)
	require.Equal(t, "Preempted in order to admit critical pod", ended.Message)
	require.Contains(t, f.metrics.withPrefix("preempted"), "preempted cpu")
	require.True(t, f.recorder.hasPrefix("Warning Preempting Preempted in order"))
	found := false
	for _, c := range ended.Conditions {
		found = found || c.Type == corev1.DisruptionTarget && c.Reason == corev1.PodReasonTerminationByKubelet
	}
	require.True(t, found, "condition DisruptionTarget in %v", ended.Conditions)
}

// TestRejectedCriticalPodPreemptsNone rejects a critical Pod for another reason than missing resources.
func TestRejectedCriticalPodPreemptsNone(t *testing.T) {
	f := newFixture(t)
	other := pod("other")
	f.add(other)
	f.waitStatus(other.UID, "runs", running)
	f.admitter.mu.Lock()
	f.admitter.rejection = &status.Failure{Reason: "NodePorts", Message: "taken"}
	f.admitter.mu.Unlock()
	critical := pod("critical")
	f.add(critical)
	f.waitStatus(critical.UID, "rejected", func(s corev1.PodStatus) bool { return s.Reason == "NodePorts" })
	require.Equal(t, 1, f.runtime.Running()["main"])
}
