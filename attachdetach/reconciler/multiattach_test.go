package reconciler_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/volume/operationexecutor"
)

// B-21: exclusive volumes, and the events of the Pods.
func TestMultiAttach(t *testing.T) {
	w := newFixture(t)
	w.start()
	w.node("a")
	w.node("b")
	const prefix = `Warning FailedAttachVolume Multi-Attach error for volume "d" Volume is already `
	pod := w.attachAndMount("d", "a")
	other := w.pod("ns", "another", "a", disk("d"))
	first := w.pod("ns", "first", "b", disk("d"))
	require.Equal(t, prefix+"used by pod(s) another, pod-d", w.nextEvent())
	foreign := w.pod("elsewhere", "secret", "a", disk("d"))
	w.waitIdle()
	w.pod("ns", "second", "b", disk("d"))
	require.Equal(t, prefix+"used by pod(s) another, pod-d and 1 pod(s) in different namespaces", w.nextEvent(),
		"a Pod that comes later gets an event too, and only that one")
	w.deletePod(pod, "a", "d")
	w.deletePod(other, "a", "d")
	w.pod("ns", "third", "b", disk("d"))
	require.Equal(t, prefix+"used by 1 pod(s) in different namespaces", w.nextEvent())
	w.deletePod(foreign, "a", "d")
	w.pod("ns", "fourth", "b", disk("d"))
	w.waitIdle()
	require.Empty(t, w.events.Events, "the node has only just been asked to let it go")
	w.clock.Step(10 * time.Second)
	require.Equal(t, prefix+"exclusively attached to one node and can't be attached to another", w.nextEvent())
	require.Zero(t, w.storage.count("attach d b"))
	w.setMounted("a")
	w.waitState("d", "b", attached)
	require.Empty(t, w.storage.problems)
	require.Contains(t, w.nextEvent(), "SuccessfulAttachVolume")
	_ = first
}

// U-5: a volume that moves from node to node in the usual time raises no alarm.
func TestMoveRaisesNoAlarm(t *testing.T) {
	w := newFixture(t)
	w.start()
	w.node("a")
	w.node("b")
	pod := w.attachAndMount("d", "a")
	w.deletePod(pod, "a", "d")
	w.waitIdle()
	w.pod("ns", "next", "b", disk("d"))
	w.waitIdle()
	w.clock.Step(9 * time.Second) // what the slowest kubelet takes to say that it is unmounted
	w.waitIdle()
	w.setMounted("a")
	w.waitState("d", "b", attached)
	require.Contains(t, w.nextEvent(), "Normal SuccessfulAttachVolume")
	require.Empty(t, w.events.Events)
}

// B-11: while one node may have an exclusive volume no other gets it.
func TestUncertainAttachmentIsDetachedFirst(t *testing.T) {
	w := newFixture(t)
	w.start()
	w.node("a")
	w.node("b")
	w.storage.withLock(func() {
		w.storage.attach = func(_ string, node types.NodeName) (bool, error) {
			if node == "a" {
				return true, errors.New("timed out") // and did it nevertheless
			}
			return true, nil
		}
	})
	pod := w.pod("ns", "p", "a", disk("d"))
	require.Equal(t, `Warning FailedAttachVolume AttachVolume.Attach failed for volume "d" : timed out`, w.nextEvent())
	w.waitState("d", "a", uncertain)
	require.False(t, w.statuses.hasVolume("a", "d"))
	w.setMounted("a")
	w.deletePod(pod, "a", "d")
	w.pod("ns", "p2", "b", disk("d"))
	w.waitState("d", "b", attached)
	require.Equal(t, 1, w.storage.count("detach d a"))
	require.Empty(t, w.storage.problems)
}

// B-11: where Pods use the volume on all nodes that may have it, none of the nodes waits for another one to release it.
func TestUncertainAttachmentsThatAreAllUsed(t *testing.T) {
	w := newFixture(t)
	w.storage.withLock(func() {
		w.storage.attach = func(_ string, node types.NodeName) (bool, error) {
			if node == "a" {
				return false, errors.New("in use on node b")
			}
			return true, nil
		}
		w.storage.on["d"] = map[types.NodeName]bool{"b": true}
	})
	for _, node := range []types.NodeName{"a", "b", "c"} {
		w.node(node)
		w.pod("ns", "pod-"+string(node), node, disk("d"))
	}
	for _, node := range []types.NodeName{"a", "b"} { // as after a restart, from VolumeAttachments of another controller
		require.NoError(t, w.actual.MarkVolumeAsUncertain(unique("d"), disk("d"), node))
		w.setMounted(node)
	}
	w.start()
	w.eventually(func() bool { w.clock.Step(time.Second); return w.actual.GetAttachState(unique("d"), "b") == attached },
		"the storage decides")
	require.Zero(t, w.storage.count("attach d c"), "c certainly does not have it")
	tries := w.storage.count("attach d a")
	w.clock.Step(time.Hour)
	w.waitIdle()
	require.Equal(t, tries, w.storage.count("attach d a"), "now b has it for certain")
	require.Empty(t, w.storage.problems)
}

// B-11: a node that no Pod uses it on releases it first.
func TestUncertainAttachmentsOfWhichOneIsUnused(t *testing.T) {
	w := newFixture(t)
	for _, node := range []types.NodeName{"a", "b", "c"} {
		w.node(node)
		require.NoError(t, w.actual.MarkVolumeAsUncertain(unique("d"), disk("d"), node))
	}
	w.setMounted("a")
	w.setMounted("b")
	w.setMounted("c", "d")
	w.pod("ns", "pod-a", "a", disk("d"))
	w.pod("ns", "pod-b", "b", disk("d"))
	w.start()
	w.clock.Step(time.Minute)
	w.waitIdle()
	require.Zero(t, w.storage.count("attach d a")+w.storage.count("attach d b"), "c has it mounted")
	w.setMounted("c")
	w.eventually(func() bool { return len(w.actual.GetNodesForAttachedVolume(unique("d"))) == 1 }, "c has released it")
	require.Empty(t, w.storage.problems)
}

// a volume that hangs on another node is found and released there.
func TestDanglingAttachment(t *testing.T) {
	w := newFixture(t)
	w.start()
	w.node("a")
	w.node("b")
	w.storage.withLock(func() {
		w.storage.attach = func(disk string, _ types.NodeName) (bool, error) {
			if !w.storage.on[disk]["b"] {
				return true, nil
			}
			return false, &operationexecutor.DanglingAttachError{Node: "b", Err: errors.New("busy")}
		}
		w.storage.on["d"] = map[types.NodeName]bool{"b": true}
	})
	w.pod("ns", "p", "a", disk("d"))
	w.eventually(func() bool { return w.storage.count("attach d a") == 1 }, "first try")
	w.waitState("d", "b", uncertain)
	w.setMounted("b")
	w.waitState("d", "b", detached)
	w.eventually(func() bool { w.clock.Step(time.Second); return w.actual.GetAttachState(unique("d"), "a") == attached }, "a")
	require.Empty(t, w.storage.problems)
}
