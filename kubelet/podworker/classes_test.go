package podworker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/status"
)

// burstable is a Pod that requests CPU without a limit.
func burstable(name, cpu string, change ...func(*corev1.Pod)) *corev1.Pod {
	return pod(name, append(change, func(p *corev1.Pod) {
		p.Spec.Containers[0].Name = name
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	})...)
}

// TestBurstableCPUFollowsActivePods adds, resizes, ends and removes Pods: the CPU of the Burstable cgroup is always what
// the active Burstable Pods request together.
func TestBurstableCPUFollowsActivePods(t *testing.T) {
	f := newFixture(t)
	becomes := func(want int64) {
		t.Helper()
		f.waitFor("the Burstable cgroup's CPU", func() bool { return f.builder.burstableCPU() == want })
	}
	a, job := burstable("a", "200m"), burstable("job", "300m", func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
	})
	f.add(a)
	f.waitStatus(a.UID, "running", running)
	require.EqualValues(t, -1, f.builder.burstableCPU(), "other Pods may still come")
	f.manager.SourcesReady()
	becomes(200)
	require.Equal(t, cm.Requests{BurstableCPU: 200}, f.manager.ClassRequests())

	guaranteed := sized("1", "30Mi", func(p *corev1.Pod) {
		p.Name, p.UID, p.Spec.Containers[0].Name = "g", "uid-g", "g"
	})
	f.add(guaranteed)
	f.waitStatus(guaranteed.UID, "running", running)
	f.add(job)
	becomes(500)
	f.admitter.mu.Lock()
	f.admitter.rejection = &status.Failure{Reason: "OutOfcpu", Message: "full"}
	f.admitter.mu.Unlock()
	f.add(burstable("rejected", "5"))
	f.waitStatus("uid-rejected", "failed", func(s corev1.PodStatus) bool { return s.Phase == corev1.PodFailed })

	a = a.DeepCopy()
	a.Generation++
	a.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("450m")
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: a})
	becomes(750)
	f.waitStatus(job.UID, "running", running)
	f.runtime.Exit("job", 0)
	becomes(450)
	f.manager.HandlePod(config.Change{Op: config.Delete, Pod: deleted(a)})
	f.manager.HandlePod(config.Change{Op: config.Remove, Pod: a})
	becomes(0)
	f.builder.mu.Lock()
	defer f.builder.mu.Unlock()
	require.Equal(t, []cm.Requests{{BurstableCPU: 200}, {BurstableCPU: 500}, {BurstableCPU: 750}, {BurstableCPU: 450}, {}},
		f.builder.classes, "one write for each change")
}

// TestBurstableCPUIsRetried lets the write fail once.
func TestBurstableCPUIsRetried(t *testing.T) {
	f := newFixture(t)
	f.builder.classesErr = errors.New("read-only")
	f.add(burstable("a", "200m"))
	f.manager.SourcesReady()
	f.waitFor("the retry", func() bool { f.clock.Step(time.Second); return f.builder.burstableCPU() == 200 })
}

// TestBurstableCPUAfterARestart adds the Pods of an earlier process: no smaller sum is written meanwhile.
func TestBurstableCPUAfterARestart(t *testing.T) {
	f := newFixture(t)
	for _, name := range []string{"a", "b"} {
		f.add(burstable(name, "100m"))
		f.waitStatus(types.UID("uid-"+name), "running", running)
	}
	f.manager.SourcesReady()
	f.waitFor("written", func() bool { return f.builder.burstableCPU() == 200 })
	f.stop()
	f.start()
	for _, name := range []string{"a", "b"} {
		p := burstable(name, "100m")
		p.Status, _ = f.statuses.Get(p.UID)
		f.add(p)
		f.waitStatus(p.UID, "running", running)
	}
	f.manager.SourcesReady()
	f.waitFor("written again", func() bool {
		f.builder.mu.Lock()
		defer f.builder.mu.Unlock()
		return len(f.builder.classes) == 2
	})
	require.EqualValues(t, 200, f.builder.burstableCPU())
}
