package podworker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/kubelet/allocation"
	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/status"
)

// sized is a Pod with so much CPU and memory.
func sized(cpu, memory string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := pod("a", change...)
	list := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
	}
	p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
	return p
}

// resized is the same Pod in its next generation.
func resized(p *corev1.Pod, cpu, memory string) *corev1.Pod {
	next := p.DeepCopy()
	next.Generation++
	next.Spec.Containers[0].Resources = sized(cpu, memory).Spec.Containers[0].Resources
	return next
}

func findCondition(s corev1.PodStatus, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == kind {
			return &s.Conditions[i]
		}
	}
	return nil
}

// resizedTo is a status without any trace of a change, of at least this generation and with this much CPU.
func resizedTo(generation int64, cpu string) func(s corev1.PodStatus) bool {
	return func(s corev1.PodStatus) bool {
		return s.ObservedGeneration >= generation && findCondition(s, corev1.PodResizePending) == nil &&
			findCondition(s, corev1.PodResizeInProgress) == nil && len(s.ContainerStatuses) == 1 &&
			s.ContainerStatuses[0].Resources.Requests.Cpu().Equal(resource.MustParse(cpu)) &&
			s.ContainerStatuses[0].AllocatedResources.Cpu().Equal(resource.MustParse(cpu))
	}
}

func TestResizeInPlace(t *testing.T) {
	w := newFixture(t)
	p := sized("20m", "30Mi")
	w.add(p)
	w.waitStatus(p.UID, "running", running)
	p = resized(p, "40m", "60Mi")
	w.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
	s := w.waitStatus(p.UID, "resized", resizedTo(2, "40m"))
	require.Zero(t, s.ContainerStatuses[0].RestartCount)
	require.Equal(t, 1, w.runtime.Calls("UpdateContainerResources"))
	w.builder.mu.Lock()
	defer w.builder.mu.Unlock()
	require.Equal(t, []bool{false, true}, w.builder.resized, "the pod's group gives room first")
}

func TestResizeByRestart(t *testing.T) {
	w := newFixture(t)
	p := sized("20m", "30Mi", func(p *corev1.Pod) {
		p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{
			{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer},
		}
	})
	w.add(p)
	w.waitStatus(p.UID, "running", running)
	p = resized(p, "40m", "30Mi")
	w.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
	s := w.waitStatus(p.UID, "resized in place", resizedTo(2, "40m"))
	require.Zero(t, s.ContainerStatuses[0].RestartCount)

	p = resized(p, "50m", "60Mi")
	w.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
	w.waitStatus(p.UID, "resized by a restart", func(s corev1.PodStatus) bool {
		return resizedTo(3, "50m")(s) && s.ContainerStatuses[0].RestartCount == 1 && running(s)
	})
	require.Equal(t, 1, w.runtime.Calls("UpdateContainerResources"))
}

func TestResizeIsDeferredUntilCapacityIsFree(t *testing.T) {
	w := newFixture(t)
	w.admitter.setResizeFailure(&status.Failure{Reason: corev1.PodReasonDeferred, Message: "later"})
	other := pod("b")
	w.add(other)
	p := sized("20m", "30Mi")
	w.add(p)
	w.waitStatus(p.UID, "running", running)
	p = resized(p, "40m", "30Mi")
	w.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
	s := w.waitStatus(p.UID, "deferred", func(s corev1.PodStatus) bool { return findCondition(s, corev1.PodResizePending) != nil })
	require.Equal(t, corev1.PodReasonDeferred, findCondition(s, corev1.PodResizePending).Reason)
	require.Equal(t, int64(2), s.ObservedGeneration)
	require.Equal(t, "20m", s.ContainerStatuses[0].Resources.Requests.Cpu().String())

	// A restart of the agent takes the wish for no grant.
	w.stop()
	p = p.DeepCopy()
	p.Status = s
	w.start()
	w.add(p)
	w.add(other)
	w.waitStatus(other.UID, "running again", running)
	require.Zero(t, w.runtime.Calls("UpdateContainerResources"))

	w.admitter.setResizeFailure(nil)
	w.manager.HandlePod(config.Change{Op: config.Remove, Pod: other})
	w.waitStatus(p.UID, "resized when the other has gone", resizedTo(2, "40m"))
}

func TestFailedResizeIsReportedAndRetried(t *testing.T) {
	w := newFixture(t)
	p := sized("20m", "30Mi")
	w.add(p)
	w.waitStatus(p.UID, "running", running)
	w.runtime.FailNext("UpdateContainerResources", errors.New("busy"))
	w.manager.HandlePod(config.Change{Op: config.Update, Pod: resized(p, "20m", "20Mi")})
	s := w.waitStatus(p.UID, "error", func(s corev1.PodStatus) bool {
		c := findCondition(s, corev1.PodResizeInProgress)
		return c != nil && c.Reason == corev1.PodReasonError
	})
	require.Contains(t, findCondition(s, corev1.PodResizeInProgress).Message, "busy")
	require.Equal(t, "30Mi", s.ContainerStatuses[0].Resources.Limits.Memory().String(), "what is in force")
	w.waitFor("resized", func() bool { w.clock.Step(time.Second); return w.runtime.Calls("UpdateContainerResources") == 2 })
	w.waitStatus(p.UID, "settled", resizedTo(2, "20m"))
}

// TestSpecChangedWhileKubeletIsDown changes the spec of a Pod while the node agent is down, and says nothing of it in the status:
// the Pod keeps what it was granted, and the change is asked for.
func TestSpecChangedWhileKubeletIsDown(t *testing.T) {
	w := newFixture(t)
	p := sized("20m", "30Mi")
	w.add(p)
	s := w.waitStatus(p.UID, "running", running)
	w.stop()
	p = resized(p, "40m", "30Mi")
	p.Status = s
	w.admitter.setResizeFailure(&status.Failure{Reason: corev1.PodReasonDeferred, Message: "later"})
	w.start()
	w.add(p)
	s = w.waitStatus(p.UID, "deferred", func(s corev1.PodStatus) bool { return findCondition(s, corev1.PodResizePending) != nil })
	require.Equal(t, "20m", s.ContainerStatuses[0].AllocatedResources.Cpu().String())
	require.Zero(t, w.runtime.Calls("UpdateContainerResources"))
}

// TestChangeThatACrashCutOff has a change granted and not told to the container.
func TestChangeThatACrashCutOff(t *testing.T) {
	w := newFixture(t)
	p := sized("20m", "30Mi")
	w.add(p)
	s := w.waitStatus(p.UID, "running", running)
	w.stop()
	p = resized(p, "40m", "30Mi")
	p.Status = s
	store := allocation.Open(w.dir, nil)
	store.Allocate(p)
	ended, end := context.WithCancel(t.Context())
	end()
	require.NoError(t, store.Start(ended))
	w.admitter.setResizeFailure(&status.Failure{Reason: corev1.PodReasonDeferred, Message: "it was granted already"})
	w.start()
	w.add(p)
	w.waitStatus(p.UID, "resized", resizedTo(2, "40m"))
	w.waitFor("told", func() bool { return len(w.recorder.fields("ResizeCompleted")) == 1 })
	require.Equal(t, 1, w.runtime.Calls("UpdateContainerResources"))
}
