package podworker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

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
	w := newFixture(t)
	becomes := func(want int64) {
		t.Helper()
		w.waitFor("the Burstable cgroup's CPU", func() bool { return w.builder.burstableCPU() == want })
	}
	a, job := burstable("a", "200m"), burstable("job", "300m", func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
	})
	w.add(a)
	w.waitStatus(a.UID, "running", running)
	require.EqualValues(t, -1, w.builder.burstableCPU(), "other Pods may still come")
	w.manager.SourcesReady()
	becomes(200)

	guaranteed := sized("1", "30Mi", func(p *corev1.Pod) {
		p.Name, p.UID, p.Spec.Containers[0].Name = "g", "uid-g", "g"
	})
	w.add(guaranteed)
	w.waitStatus(guaranteed.UID, "running", running)
	w.add(job)
	becomes(500)
	w.admitter.mu.Lock()
	w.admitter.rejection = &status.Failure{Reason: "OutOfcpu", Message: "full"}
	w.admitter.mu.Unlock()
	w.add(burstable("rejected", "5"))
	w.waitStatus("uid-rejected", "failed", func(s corev1.PodStatus) bool { return s.Phase == corev1.PodFailed })

	a = a.DeepCopy()
	a.Generation++
	a.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("450m")
	w.manager.HandlePod(config.Change{Op: config.Update, Pod: a})
	becomes(750)
	w.waitStatus(job.UID, "running", running)
	w.runtime.Exit("job", 0)
	becomes(450)
	w.manager.HandlePod(config.Change{Op: config.Delete, Pod: deleted(a)})
	w.manager.HandlePod(config.Change{Op: config.Remove, Pod: a})
	becomes(0)
	w.builder.mu.Lock()
	defer w.builder.mu.Unlock()
	require.Equal(t, []int64{200, 500, 750, 450, 0}, w.builder.burstable, "one write for each change")
}

// TestBurstableCPUIsRetried lets the write fail once.
func TestBurstableCPUIsRetried(t *testing.T) {
	w := newFixture(t)
	w.builder.burstableErr = errors.New("read-only")
	w.add(burstable("a", "200m"))
	w.manager.SourcesReady()
	w.waitFor("the retry", func() bool { w.clock.Step(time.Second); return w.builder.burstableCPU() == 200 })
}

// TestBurstableCPUAfterARestart adds the Pods of an earlier process: no smaller sum is written meanwhile.
func TestBurstableCPUAfterARestart(t *testing.T) {
	w := newFixture(t)
	for _, name := range []string{"a", "b"} {
		w.add(burstable(name, "100m"))
		w.waitStatus(types.UID("uid-"+name), "running", running)
	}
	w.manager.SourcesReady()
	w.waitFor("written", func() bool { return w.builder.burstableCPU() == 200 })
	w.stop()
	w.start()
	for _, name := range []string{"a", "b"} {
		p := burstable(name, "100m")
		p.Status, _ = w.statuses.Get(p.UID)
		w.add(p)
		w.waitStatus(p.UID, "running", running)
	}
	w.manager.SourcesReady()
	w.waitFor("written again", func() bool {
		w.builder.mu.Lock()
		defer w.builder.mu.Unlock()
		return len(w.builder.burstable) == 2
	})
	require.EqualValues(t, 200, w.builder.burstableCPU())
}
