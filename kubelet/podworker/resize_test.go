package podworker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
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

// resizedTo is a status without a resize condition, of at least this generation and with this much CPU.
func resizedTo(generation int64, cpu string) func(s corev1.PodStatus) bool {
	return func(s corev1.PodStatus) bool {
		return s.ObservedGeneration >= generation && findCondition(s, corev1.PodResizePending) == nil &&
			findCondition(s, corev1.PodResizeInProgress) == nil && len(s.ContainerStatuses) == 1 &&
			s.ContainerStatuses[0].Resources.Requests.Cpu().Equal(resource.MustParse(cpu)) &&
			s.ContainerStatuses[0].AllocatedResources.Cpu().Equal(resource.MustParse(cpu))
	}
}

func TestResizeInPlace(t *testing.T) {
	f := newFixture(t)
	p := sized("20m", "30Mi")
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	p = resized(p, "40m", "60Mi")
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
	s := f.waitStatus(p.UID, "resized", resizedTo(2, "40m"))
	require.Zero(t, s.ContainerStatuses[0].RestartCount)
	require.Equal(t, 1, f.runtime.Calls("UpdateContainerResources"))
	f.builder.mu.Lock()
	defer f.builder.mu.Unlock()
	require.Equal(t, []bool{false, true}, f.builder.resized, "the Pod's cgroup loses its limits first")
}

// TestSandboxIsResized raises and then lowers a Pod's resources: the runtime learns of them once each time, and a runtime
// that cannot use them does not keep the Pod from having them.
func TestSandboxIsResized(t *testing.T) {
	f := newFixture(t)
	p := sized("20m", "30Mi")
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	p = resized(p, "40m", "30Mi")
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
	f.waitStatus(p.UID, "raised", resizedTo(2, "40m"))
	p = resized(p, "10m", "30Mi")
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
	f.waitStatus(p.UID, "lowered", resizedTo(3, "10m"))
	var shares []int64
	for _, r := range f.runtime.SandboxResources() {
		shares = append(shares, r.CpuShares)
	}
	require.Equal(t, []int64{42, 12}, shares)

	f.runtime.FailNext("UpdatePodSandboxResources", grpcstatus.Error(codes.Unimplemented, "unknown method"))
	p = resized(p, "50m", "30Mi")
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
	f.waitStatus(p.UID, "resized", resizedTo(4, "50m"))
	f.runtime.FailNext("UpdatePodSandboxResources", errors.New("no memory left for the virtual machine"))
	p = resized(p, "60m", "30Mi")
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
	s := f.waitStatus(p.UID, "failed", func(s corev1.PodStatus) bool {
		c := findCondition(s, corev1.PodResizeInProgress)
		return c != nil && c.Reason == corev1.PodReasonError
	})
	require.Contains(t, findCondition(s, corev1.PodResizeInProgress).Message, "no memory left")
}

// TestWholePodIsResized changes the resources of a Pod as a whole: no container changes, and the status has the former ones
// until the cgroup has the new ones.
func TestWholePodIsResized(t *testing.T) {
	f := newFixture(t)
	p := sized("20m", "30Mi", func(p *corev1.Pod) {
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}}
	})
	f.add(p)
	s := f.waitStatus(p.UID, "running", running)
	require.Equal(t, "100m", s.AllocatedResources.Cpu().String())
	require.Equal(t, "100m", s.Resources.Requests.Cpu().String())

	f.runtime.FailNext("UpdatePodSandboxResources", errors.New("busy"))
	p = p.DeepCopy()
	p.Generation++
	p.Spec.Resources.Requests[corev1.ResourceCPU] = resource.MustParse("200m")
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
	s = f.waitStatus(p.UID, "allocated", func(s corev1.PodStatus) bool { return s.AllocatedResources.Cpu().String() == "200m" })
	require.Equal(t, "100m", s.Resources.Requests.Cpu().String(), "not in effect yet")
	f.waitFor("the retry", func() bool {
		f.clock.Step(time.Second)
		s, _ := f.statuses.Get(p.UID)
		return s.Resources.Requests.Cpu().String() == "200m" && findCondition(s, corev1.PodResizeInProgress) == nil
	})
	require.Zero(t, f.runtime.Calls("UpdateContainerResources"))
}

// TestInitContainerIsResizedInPlace resizes a Pod whose regular init container runs.
func TestInitContainerIsResizedInPlace(t *testing.T) {
	f := newFixture(t)
	withInit := func(cpu string) *corev1.Pod {
		return sized("20m", "30Mi", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{
				Name: "init", Image: "app:1", Resources: sized(cpu, "30Mi").Spec.Containers[0].Resources,
			}}
		})
	}
	p := withInit("20m")
	f.add(p)
	initOf := func(s corev1.PodStatus, cpu string) bool {
		return len(s.InitContainerStatuses) == 1 && s.InitContainerStatuses[0].State.Running != nil &&
			s.InitContainerStatuses[0].Resources.Requests.Cpu().Equal(resource.MustParse(cpu)) &&
			s.InitContainerStatuses[0].AllocatedResources.Cpu().Equal(resource.MustParse(cpu)) &&
			findCondition(s, corev1.PodResizeInProgress) == nil
	}
	f.waitStatus(p.UID, "initializing", func(s corev1.PodStatus) bool { return initOf(s, "20m") })
	next := withInit("40m")
	next.Generation = p.Generation + 1
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: next})
	s := f.waitStatus(p.UID, "resized", func(s corev1.PodStatus) bool {
		return s.ObservedGeneration == next.Generation && initOf(s, "40m")
	})
	require.Zero(t, s.InitContainerStatuses[0].RestartCount)
	require.Equal(t, 1, f.runtime.Calls("UpdateContainerResources"))
}

func TestResizeByRestart(t *testing.T) {
	f := newFixture(t)
	p := sized("20m", "30Mi", func(p *corev1.Pod) {
		p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{
			{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer},
		}
	})
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	p = resized(p, "40m", "30Mi")
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
	s := f.waitStatus(p.UID, "resized in place", resizedTo(2, "40m"))
	require.Zero(t, s.ContainerStatuses[0].RestartCount)

	p = resized(p, "50m", "60Mi")
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
	f.waitStatus(p.UID, "resized by a restart", func(s corev1.PodStatus) bool {
		return resizedTo(3, "50m")(s) && s.ContainerStatuses[0].RestartCount == 1 && running(s)
	})
	require.Equal(t, 1, f.runtime.Calls("UpdateContainerResources"))
}

// TestMemoryRequestIsResizedByRestart changes the request of memory alone, which the runtime does not know.
func TestMemoryRequestIsResizedByRestart(t *testing.T) {
	f := newFixture(t)
	p := sized("20m", "30Mi", func(p *corev1.Pod) {
		p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{
			{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer},
		}
	})
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	p = p.DeepCopy()
	p.Generation++
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("20m"), corev1.ResourceMemory: resource.MustParse("20Mi"),
	}
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
	f.waitStatus(p.UID, "resized by a restart", func(s corev1.PodStatus) bool {
		return resizedTo(2, "20m")(s) && s.ContainerStatuses[0].RestartCount == 1 && running(s)
	})
}

func TestResizeIsDeferredUntilCapacityIsFree(t *testing.T) {
	f := newFixture(t)
	f.admitter.setResizeFailure(&status.Failure{Reason: corev1.PodReasonDeferred, Message: "later"})
	other := pod("b")
	f.add(other)
	p := sized("20m", "30Mi")
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	p = resized(p, "40m", "30Mi")
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
	s := f.waitStatus(p.UID, "deferred", func(s corev1.PodStatus) bool { return findCondition(s, corev1.PodResizePending) != nil })
	require.Equal(t, corev1.PodReasonDeferred, findCondition(s, corev1.PodResizePending).Reason)
	require.Equal(t, int64(2), s.ObservedGeneration)
	require.Equal(t, "20m", s.ContainerStatuses[0].Resources.Requests.Cpu().String())

	// A restart of the agent takes the wish for no grant.
	f.stop()
	p = p.DeepCopy()
	p.Status = s
	f.start()
	f.add(p)
	f.add(other)
	f.manager.SourcesReady()
	f.waitStatus(other.UID, "running again", running)
	require.Zero(t, f.runtime.Calls("UpdateContainerResources"))

	f.admitter.setResizeFailure(nil)
	f.manager.HandlePod(config.Change{Op: config.Remove, Pod: other})
	f.waitStatus(p.UID, "resized when the other has gone", resizedTo(2, "40m"))
}

func TestFailedResizeIsReportedAndRetried(t *testing.T) {
	f := newFixture(t)
	p := sized("20m", "30Mi")
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	f.runtime.FailNext("UpdateContainerResources", errors.New("busy"))
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: resized(p, "20m", "20Mi")})
	s := f.waitStatus(p.UID, "error", func(s corev1.PodStatus) bool {
		c := findCondition(s, corev1.PodResizeInProgress)
		return c != nil && c.Reason == corev1.PodReasonError
	})
	require.Contains(t, findCondition(s, corev1.PodResizeInProgress).Message, "busy")
	require.Equal(t, "30Mi", s.ContainerStatuses[0].Resources.Limits.Memory().String(), "what is in force")
	f.waitFor("resized", func() bool { f.clock.Step(time.Second); return f.runtime.Calls("UpdateContainerResources") == 2 })
	f.waitStatus(p.UID, "resized", resizedTo(2, "20m"))
}

// TestSpecChangedWhileKubeletIsDown changes the spec of a Pod while the kubelet is down: the Pod keeps its allocated
// resources, and the change is tried as a resize.
func TestSpecChangedWhileKubeletIsDown(t *testing.T) {
	f := newFixture(t)
	p := sized("20m", "30Mi")
	f.add(p)
	s := f.waitStatus(p.UID, "running", running)
	f.stop()
	p = resized(p, "40m", "30Mi")
	p.Status = s
	f.admitter.setResizeFailure(&status.Failure{Reason: corev1.PodReasonDeferred, Message: "later"})
	f.start()
	f.add(p)
	s = f.waitStatus(p.UID, "deferred", func(s corev1.PodStatus) bool { return findCondition(s, corev1.PodResizePending) != nil })
	require.Equal(t, "20m", s.ContainerStatuses[0].AllocatedResources.Cpu().String())
	require.Zero(t, f.runtime.Calls("UpdateContainerResources"))
}

// TestChangeThatACrashCutOff has a resize that was allocated and not applied to the container.
func TestChangeThatACrashCutOff(t *testing.T) {
	f := newFixture(t)
	p := sized("20m", "30Mi")
	f.add(p)
	s := f.waitStatus(p.UID, "running", running)
	f.stop()
	p = resized(p, "40m", "30Mi")
	p.Status = s
	store := allocation.Open(f.dir, nil)
	store.Allocate(p)
	ended, end := context.WithCancel(t.Context())
	end()
	require.NoError(t, store.Start(ended))
	f.admitter.setResizeFailure(&status.Failure{Reason: corev1.PodReasonDeferred, Message: "it was granted already"})
	f.start()
	f.add(p)
	f.waitStatus(p.UID, "resized", resizedTo(2, "40m"))
	f.waitFor("the event", func() bool { return len(f.recorder.fields("ResizeCompleted")) == 1 })
	require.Equal(t, 1, f.runtime.Calls("UpdateContainerResources"))
}

// A static Pod whose manifest gives it a UID may lose a container when that is edited.
func TestUpdateMayRemoveAContainer(t *testing.T) {
	f := newFixture(t)
	requests := func(cpu string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}
	}
	p := pod("p", func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{
			{Name: "first", Image: "app:1", Resources: requests("1")}, {Name: "main", Image: "app:1", Resources: requests("2")},
		}
	})
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	edited := p.DeepCopy()
	edited.Generation, edited.Spec.Containers = 2, edited.Spec.Containers[1:]
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: edited})
	f.waitStatus(p.UID, "without it", func(s corev1.PodStatus) bool { return len(s.ContainerStatuses) == 1 })
	require.False(t, f.recorder.hasPrefix("Warning KubeletPanicked"))
}
