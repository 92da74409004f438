package podworker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/podworker"
)

// TestPanicOfOnePodHarmsNoOther mounts the volumes of a Pod by a plugin that panics.
func TestPanicOfOnePodHarmsNoOther(t *testing.T) {
	f := newFixture(t)
	f.add(pod("other"))
	f.waitStatus("uid-other", "running", running)
	f.add(pod("bad", func(p *corev1.Pod) { p.Annotations = map[string]string{"panic": "mount"} }))
	for n := 1; n <= 3; n++ {
		f.waitFor("a panic", func() bool {
			f.clock.Step(time.Second)
			return f.recorder.hasPrefix(fmt.Sprintf("%s %s The kubelet panicked while it handled this Pod (%d of 3)", corev1.EventTypeWarning, podworker.ReasonPanicked, n))
		})
	}
	s := f.waitStatus("uid-bad", "failed", func(s corev1.PodStatus) bool { return s.Phase == corev1.PodFailed })
	require.Equal(t, podworker.ReasonPanicked, s.Reason)
	require.Contains(t, s.Message, "mount of bad")

	f.add(pod("new"))
	f.waitStatus("uid-new", "running", running)
	f.waitStatus("uid-other", "still running", running)
	require.Equal(t, 2, f.runtime.Calls("CreateContainer"), "no container was created again")
}

// TestPanicOfAWorkerItselfLosesNoPod panics outside of the steps that a worker contains, and once while what it has left is removed.
func TestPanicOfAWorkerItselfLosesNoPod(t *testing.T) {
	f := newFixture(t)
	f.metrics.startPanics = 1
	panicked := false
	f.gone = func(types.UID) {
		if !panicked {
			panicked = true
			panic("injected at the removal")
		}
	}
	f.add(pod("bad"))
	f.waitStatus("uid-bad", "running", running)
	f.manager.HandlePod(config.Change{Op: config.Delete, Pod: pod("bad", func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: f.clock.Now()}, new(int64(0))
	})})
	f.manager.HandlePod(config.Change{Op: config.Remove, Pod: pod("bad")})
	f.waitFor("its end", func() bool {
		f.clock.Step(time.Second)
		return !f.manager.Has("uid-bad")
	})
}

// A Pod whose container is started after a panic has a status that says so.
func TestStatusFollowsAPodThatGoesOnAfterAPanic(t *testing.T) {
	f := newFixture(t)
	f.builder.containerPanics = 1
	f.add(pod("bad"))
	f.waitFor("the second try", func() bool {
		f.clock.Step(time.Second)
		return f.runtime.Running()["main"] == 1
	})
	f.waitStatus("uid-bad", "running", running)
}
