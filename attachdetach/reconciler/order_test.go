package reconciler_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/attachdetach/reconciler"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

// the first pass comes at once, further ones a period apart; they find what no event reported, and where there
// is nothing to do they make no call.
func TestPassesFindWhatNoEventReported(t *testing.T) {
	w := newFixture(t, func(_ *reconciler.Deps, c *reconciler.Config) { c.LoopPeriod = time.Minute })
	w.start()
	w.node("a")
	pod := w.attachAndMount("d", "a")
	w.deletePod(pod, "a", "d")
	w.waitIdle()
	tainted := &corev1.Node{}
	tainted.Name, tainted.Spec.Taints = "a", []corev1.Taint{{Key: corev1.TaintNodeOutOfService}}
	require.NoError(t, w.nodes.Update(tainted)) // without an event
	w.waitIdle()
	w.clock.Step(time.Minute - 1)
	w.waitIdle()
	require.Zero(t, w.storage.count("detach d a"), "the period is not over")
	w.clock.Step(1)
	w.waitState("d", "a", detached)
	w.waitIdle()
	w.storage.withLock(func() { w.storage.calls = nil })
	for range 3 {
		w.clock.Step(time.Minute)
	}
	w.waitIdle()
	w.storage.withLock(func() {
		require.Len(t, w.storage.calls, 1, "but for the probe there is nothing to do: %v", w.storage.calls)
	})
}

// in one pass a detach comes before the attach that needs it, and causes no event.
func TestDetachComesBeforeAttach(t *testing.T) {
	w := newFixture(t)
	w.node("a")
	w.node("b")
	require.NoError(t, w.actual.MarkVolumeAsAttached(unique("d"), disk("d"), "a", ""))
	w.actual.SetVolumesMountedByNode(nil, "a")
	w.pod("ns", "p", "b", disk("d"))
	w.start()
	w.waitState("d", "b", attached)
	w.storage.withLock(func() { require.Equal(t, []string{"detach d a", "attach d b"}, w.storage.calls) })
	var events []string
	for len(w.events.Events) > 0 {
		events = append(events, <-w.events.Events)
	}
	for _, event := range events {
		require.NotContains(t, event, "etach succeeded")
		require.NotContains(t, event, "DetachVolume")
	}
}

// while an operation is pending the unmount timer does not start.
func TestPendingOperationDoesNotStartTheTimer(t *testing.T) {
	w := newFixture(t)
	w.start()
	w.node("a")
	pod := w.attachAndMount("d", "a")
	hold := make(chan struct{})
	w.storage.withLock(func() { w.storage.block = hold })
	require.NoError(t, w.executor.AttachVolume(t.Context(),
		operationexecutor.VolumeToAttach{VolumeName: unique("d"), VolumeSpec: disk("d"), NodeName: "a"}, w.actual))
	w.eventually(func() bool { return w.storage.count("attach d a") == 2 }, "the operation must be pending")
	w.storage.withLock(func() { w.storage.block = nil })
	w.deletePod(pod, "a", "d")
	w.waitIdle()
	at, ok := w.actual.GetAttachedVolume(unique("d"), "a")
	require.True(t, ok)
	require.Zero(t, at.DetachRequestedTime)
	require.Zero(t, w.storage.count("detach d a"))
	close(hold)
	w.eventually(func() bool {
		at, _ := w.actual.GetAttachedVolume(unique("d"), "a")
		return !at.DetachRequestedTime.IsZero()
	}, "the end of the operation must start it")
}

// a pair that is gone by the time of its detach is not detached.
func TestPairThatVanishesDuringTheWrite(t *testing.T) {
	w := newFixture(t)
	open := w.holdDetach()
	w.actual.MarkVolumeAsDetached(unique("d"), "a")
	open()
	w.waitIdle()
	require.Zero(t, w.storage.count("detach d a"))
	require.Equal(t, detached, w.actual.GetAttachState(unique("d"), "a"))
}

// with less than a second between verifications there are none.
func TestVerificationCanBeTurnedOff(t *testing.T) {
	for _, period := range []time.Duration{0, time.Second - 1} {
		w := newFixture(t, func(_ *reconciler.Deps, c *reconciler.Config) { c.SyncDuration = period })
		w.start()
		w.node("a")
		w.attachAndMount("d", "a")
		w.clock.Step(time.Hour)
		w.waitIdle()
		require.Zero(t, w.storage.count("verify a"))
	}
}

// U-2, U-3: a forced detach says on the Node and on the Pods that wait what was assumed, and that it is a risk.
func TestForcedDetachIsReported(t *testing.T) {
	w := newFixture(t)
	w.start()
	w.node("a")
	w.node("b")
	pod := w.attachAndMount("d", "a")
	w.deletePod(pod, "a", "d")
	w.pod("ns", "waits", "b", disk("d"))
	w.waitIdle()
	w.node("a", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService}} })
	for _, who := range []string{"the Node", "the Pod"} {
		event := w.nextEvent()
		require.Contains(t, event, "Warning "+reconciler.ReasonForcedDetach, who)
		require.Contains(t, event, `"d" from node "a" without waiting for it to be unmounted: the node is tainted`, who)
		require.Contains(t, event, "data may be lost", who)
	}
	w.waitState("d", "b", attached)
}

// The timeline of a waiting Pod says which node has its volume, since when, and what ends that.
func TestHolderIsReported(t *testing.T) {
	recorder := timeline.New(testclock.NewFakeClock(time.Now()), 0)
	pods := func(uid types.UID, text string) bool {
		record, _ := recorder.Record(uid)
		return slices.ContainsFunc(record.Stages, func(s timeline.Stage) bool { return strings.Contains(s.Error, text) })
	}
	w := newFixture(t, func(d *reconciler.Deps, _ *reconciler.Config) { d.Timeline = recorder })
	w.start()
	w.node("a")
	w.node("b")
	pod := w.attachAndMount("d", "a")
	since := w.clock.Now().UTC().Format("15:04:05")
	waiting := w.pod("ns", "waits", "b", disk("d"))
	requireRecorded := func(text string) {
		t.Helper()
		w.eventually(func() bool { return pods(waiting.UID, text) }, text)
	}
	requireRecorded(`volume is attached to node "a" since ` + since + `, and pods on that node use it: it is released when they end`)
	w.node("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown })
	again := w.pod("ns", "waits-too", "b", disk("d"))
	w.eventually(func() bool {
		return pods(again.UID, "the node is not ready: if it is lost for good, taint it with node.kubernetes.io/out-of-service")
	}, "the record must say what a person can do")
	w.deletePod(pod, "a", "d")
	requireRecorded(`mounted there: it is released when the node has unmounted it, or at ` +
		w.clock.Now().Add(maxWait).UTC().Format("15:04:05") + ` if the node is not ready`)
	w.setMounted("a")
	w.waitState("d", "b", attached)
}
