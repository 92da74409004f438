package podworker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/kubelet/config"
)

// resizeError is a status with the condition that a resize fails.
func resizeError(s corev1.PodStatus) bool {
	c := findCondition(s, corev1.PodResizeInProgress)
	return c != nil && c.Reason == corev1.PodReasonError
}

func (f *fixture) resizeCount() int {
	f.builder.mu.Lock()
	defer f.builder.mu.Unlock()
	return len(f.builder.resized)
}

// TestMemoryLimitBelowUsageIsNotSet lowers the limit of a container that uses more: nothing changes until it uses less.
func TestMemoryLimitBelowUsageIsNotSet(t *testing.T) {
	f := newFixture(t)
	p := sized("20m", "60Mi")
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	f.runtime.SetMemoryUsage("main", 40<<20)
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: resized(p, "40m", "30Mi")})
	s := f.waitStatus(p.UID, "error", resizeError)
	require.Equal(t, `memory limits are not lowered: the Pod would have its memory limit (31457280) below current usage; `+
		`container "main" would have its memory limit (31457280) below current usage`,
		findCondition(s, corev1.PodResizeInProgress).Message)
	require.Nil(t, findCondition(s, corev1.PodResizePending))
	require.Equal(t, "60Mi", s.ContainerStatuses[0].Resources.Limits.Memory().String(), "what is in force")
	f.runtime.SetMemoryUsage("main", 35<<20)
	for attempts := f.runtime.Calls("PodSandboxStats") + 3; f.runtime.Calls("PodSandboxStats") < attempts; {
		f.clock.Step(time.Second)
		time.Sleep(time.Millisecond)
	}
	require.Zero(t, f.runtime.Calls("UpdateContainerResources"))
	require.Zero(t, f.resizeCount(), "the Pod's cgroup keeps its limits")
	require.Len(t, f.recorder.fields("ResizeError"), 1, "one event, however often it is tried")

	f.runtime.SetMemoryUsage("main", 10<<20)
	f.waitFor("resized", func() bool { f.clock.Step(time.Second); return f.runtime.Calls("UpdateContainerResources") == 1 })
	f.waitStatus(p.UID, "resized", resizedTo(2, "40m"))
}

// TestMemoryLimitBelowUsageIsWithdrawn sets the former resources again while the usage does not allow the new ones.
func TestMemoryLimitBelowUsageIsWithdrawn(t *testing.T) {
	f := newFixture(t)
	p := sized("20m", "60Mi")
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	f.runtime.SetMemoryUsage("main", 40<<20)
	next := resized(p, "20m", "30Mi")
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: next})
	f.waitStatus(p.UID, "error", resizeError)
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: resized(next, "20m", "60Mi")})
	f.waitStatus(p.UID, "as before", resizedTo(3, "20m"))
	require.Zero(t, f.runtime.Calls("UpdateContainerResources"))
}

// TestPodLimitBelowUsageIsNotSet lowers the limit of one container, which the other one's usage does not allow.
func TestPodLimitBelowUsageIsNotSet(t *testing.T) {
	f := newFixture(t)
	p := sized("20m", "60Mi", func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "other", Image: "app:1"})
	})
	p.Spec.Containers[1].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("60Mi")}
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	f.runtime.SetMemoryUsage("other", 100<<20) // with memory of files that no container is charged for any more
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: resized(p, "20m", "30Mi")})
	s := f.waitStatus(p.UID, "error", resizeError)
	require.Equal(t, "memory limits are not lowered: the Pod would have its memory limit (94371840) below current usage",
		findCondition(s, corev1.PodResizeInProgress).Message)
	require.Zero(t, f.runtime.Calls("UpdateContainerResources"))
}

// TestUsageIsReadForLowerLimitsOnly raises limits without reading the usage, and does not lower them without it.
func TestUsageIsReadForLowerLimitsOnly(t *testing.T) {
	f := newFixture(t)
	p := sized("20m", "30Mi")
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	f.runtime.SetMemoryUsage("main", 30<<20)
	p = resized(p, "20m", "60Mi")
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
	f.waitStatus(p.UID, "raised", resizedTo(2, "20m"))
	require.Zero(t, f.runtime.Calls("PodSandboxStats"))

	f.runtime.FailNext("PodSandboxStats", errors.New("busy"))
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: resized(p, "20m", "40Mi")})
	s := f.waitStatus(p.UID, "error", resizeError)
	require.Contains(t, findCondition(s, corev1.PodResizeInProgress).Message, "read memory usage: busy")
	f.waitFor("lowered", func() bool { f.clock.Step(time.Second); return f.runtime.Calls("UpdateContainerResources") == 2 })
	f.waitStatus(p.UID, "lowered", resizedTo(3, "20m"))
}

// TestEndOfAPodIsNoErrorOfItsResize deletes a Pod whose memory is being measured for a resize.
func TestEndOfAPodIsNoErrorOfItsResize(t *testing.T) {
	f := newFixture(t)
	p := sized("20m", "60Mi")
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	release := f.runtime.Block("PodSandboxStats")
	defer release()
	p = resized(p, "20m", "50Mi")
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
	f.waitFor("it is resized", func() bool { return f.runtime.Calls("PodSandboxStats") > 0 })
	f.manager.HandlePod(config.Change{Op: config.Delete, Pod: deleted(p)})
	f.waitFor("it stops", func() bool { return f.runtime.Calls("StopContainer") > 0 })
	require.Empty(t, f.recorder.fields("ResizeError"))
}
