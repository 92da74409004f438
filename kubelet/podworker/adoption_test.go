package podworker_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/prober"
)

// A kubelet that starts finds the containers of static Pods running before the API server has delivered what the kubelet
// before it had said of them. Their probes do not start anew, and no status says so.
func TestAdoptedContainersWaitForWhatWasSaidOfThem(t *testing.T) {
	for _, said := range []bool{true, false} {
		name := map[bool]string{true: "delivered", false: "never delivered"}[said]
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			p := pod("p", func(p *corev1.Pod) {
				p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "second", Image: "app:1"})
			})
			f.add(p)
			p.Status = f.waitStatus(p.UID, "running", running)
			f.stop()

			f.statuses.mu.Lock()
			delete(f.statuses.last, p.UID)
			f.statuses.hidden = true
			f.statuses.mu.Unlock()
			resumed := make(chan prober.Container, 2)
			f.resumed = resumed
			f.start()
			f.add(p)
			synced := make(chan error, 1)
			require.True(t, f.manager.OnSynced(p.UID, func(err error) { synced <- err }))
			require.NoError(t, <-synced)
			require.Empty(t, resumed)
			_, written := f.statuses.Get(p.UID)
			require.False(t, written, "nothing is said of the Pod before it is known what was")

			if said {
				f.statuses.mu.Lock()
				f.statuses.hidden = false
				f.statuses.mu.Unlock()
				f.signals.Wake(p.UID)
			} else {
				f.waitFor("the time is over", func() bool { f.clock.Step(time.Second); return len(resumed) == 2 })
			}
			for range 2 {
				c := <-resumed
				require.Equal(t, said, c.WasStarted, c.Name)
				require.Equal(t, said, c.WasReady, c.Name)
			}
			f.waitStatus(p.UID, "written", func(s corev1.PodStatus) bool { return len(s.ContainerStatuses) == 2 })
		})
	}
}

// The containers may end while they wait: the status then says so.
func TestContainersMayEndBeforeTheyAreAdopted(t *testing.T) {
	f := newFixture(t)
	p := pod("p")
	f.add(p)
	p.Status = f.waitStatus(p.UID, "running", running)
	f.stop()

	f.statuses.mu.Lock()
	f.statuses.hidden = true
	f.statuses.mu.Unlock()
	f.start()
	f.add(p)
	synced := make(chan error, 1)
	require.True(t, f.manager.OnSynced(p.UID, func(err error) { synced <- err }))
	require.NoError(t, <-synced)
	f.runtime.Exit("main", 1)
	f.waitStatus(p.UID, "started again", func(s corev1.PodStatus) bool {
		return running(s) && s.ContainerStatuses[0].RestartCount == 1
	})
}

// A kubelet that starts finds a Pod running. Its sandbox and volumes are ready before this kubelet has mounted the volumes again.
func TestPodStaysPreparedWhenTheKubeletStarts(t *testing.T) {
	f := newFixture(t)
	p := pod("p")
	f.add(p)
	p.Status = f.waitStatus(p.UID, "running", running)
	f.stop()
	f.statuses.Forget(p.UID)
	mount := f.volumes.block()
	defer mount()
	f.start()
	f.add(p)
	s := f.waitStatus(p.UID, "running", running)
	for _, c := range s.Conditions {
		require.Equal(t, corev1.ConditionTrue, c.Status, c.Type)
	}
}

// A static Pod has no status where it comes from. It has started when its mirror Pod says, and is ready since then.
func TestStaticPodKeepsItsTimesWhenTheKubeletStarts(t *testing.T) {
	f := newFixture(t)
	limit := int64(7200)
	p := pod("p", func(p *corev1.Pod) {
		p.Annotations = map[string]string{podutil.SourceAnnotation: "file"}
		p.Spec.ActiveDeadlineSeconds = &limit
	})
	f.add(p)
	before := f.waitStatus(p.UID, "running", running)
	f.stop()
	f.statuses.Forget(p.UID)
	f.statuses.mirrored = before
	f.clock.Step(time.Hour)
	f.start()
	f.add(p)
	after := f.waitStatus(p.UID, "running", running)
	require.Equal(t, before.StartTime, after.StartTime)
	ready := podutil.FindCondition(&before, corev1.PodReady)
	require.Equal(t, ready.LastTransitionTime, podutil.FindCondition(&after, corev1.PodReady).LastTransitionTime)

	f.waitFor("it is over its deadline", func() bool {
		f.clock.Step(time.Hour)
		s, _ := f.statuses.Get(p.UID)
		return s.Phase == corev1.PodFailed && s.Reason == "DeadlineExceeded"
	})
}
