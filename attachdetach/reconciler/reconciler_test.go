package reconciler_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/attachdetach/cache"
	"github.com/berth-dev/berth/attachdetach/reconciler"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

const (
	attached  = cache.AttachStateAttached
	uncertain = cache.AttachStateUncertain
	detached  = cache.AttachStateDetached
)

// attachAndMount brings the world to where the disk is attached to the node for a Pod and mounted.
func (w *fixture) attachAndMount(d string, node types.NodeName) *corev1.Pod {
	w.t.Helper()
	pod := w.pod("ns", "pod-"+d, node, disk(d))
	w.waitState(d, node, attached)
	require.Contains(w.t, w.nextEvent(), "AttachVolume.Attach succeeded for volume \""+d+"\" ")
	w.eventually(func() bool { return w.statuses.hasVolume(node, d) }, "the node must list the disk")
	w.setMounted(node, d)
	return pod
}

// the documented constructor, with its nine parameters.
func TestRunWithTheDocumentedConstructor(t *testing.T) {
	w := newFixture(t)
	r := reconciler.NewReconciler(time.Hour, maxWait, 0, true, w.desired, w.actual, w.executor, w.statuses, w.events)
	w.desired.AddNode("a")
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { r.Run(stop); close(done) }()
	hold := make(chan struct{})
	w.storage.withLock(func() { w.storage.block = hold })
	w.pod("ns", "p", "a", disk("d"))
	w.eventually(func() bool { return w.storage.count("attach d a") == 1 }, "a change must not wait for the period")
	close(stop)
	<-done // although the attach goes on
	close(hold)
	w.executor.Wait()
	require.Equal(t, attached, w.actual.GetAttachState(unique("d"), "a"), "what has begun is not cancelled")
}

// B-17, U-1: when a mounted volume is detached all the same.
func TestMountedVolumeIsDetachedOnlyWhen(t *testing.T) {
	notReady := func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }
	own := func(limit string) func(*corev1.Node) {
		return func(n *corev1.Node) {
			notReady(n)
			n.Annotations = map[string]string{reconciler.AnnMaxWaitForUnmount: limit}
		}
	}
	taint := func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService}} }
	for _, test := range []struct {
		name   string
		change func(*reconciler.Deps, *reconciler.Config)
		node   func(*corev1.Node)
		after  time.Duration
		moves  bool
		reason string
	}{
		{name: "not before the timeout", node: notReady, after: maxWait},
		{name: "after the timeout if not ready", node: notReady, after: maxWait + 1, moves: true, reason: "timeout"},
		{name: "not before the node's own limit", node: own("90s"), after: 90 * time.Second},
		{name: "after the node's own limit", node: own("90s"), after: 90*time.Second + 1, moves: true, reason: "timeout"},
		{name: "a longer limit of the node's own", node: own("1h"), after: maxWait + 1},
		{name: "a bad limit is as none", node: own("soon"), after: maxWait},
		{name: "a limit of no time is as none", node: own("0s"), after: maxWait},
		{name: "not if ready", after: 10 * maxWait},
		{name: "not if forcing is off", node: notReady, after: 10 * maxWait,
			change: func(_ *reconciler.Deps, c *reconciler.Config) { c.DisableForceDetachOnTimeout = true }},
		{name: "taint", node: taint, moves: true, reason: "out-of-service"},
		{name: "taint even if forcing is off", node: taint, moves: true, reason: "out-of-service",
			change: func(_ *reconciler.Deps, c *reconciler.Config) { c.DisableForceDetachOnTimeout = true }},
		{name: "nothing is known of nodes", after: maxWait + 1, moves: true, reason: "timeout",
			change: func(d *reconciler.Deps, _ *reconciler.Config) { d.Nodes = nil }},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newFixture(t)
			if test.change != nil {
				w = newFixture(t, test.change)
			}
			w.start()
			w.node("a")
			pod := w.attachAndMount("d", "a")
			w.deletePod(pod, "a", "d")
			w.waitIdle()
			if test.node != nil {
				w.node("a", test.node)
			}
			w.waitIdle()
			w.clock.Step(test.after)
			if !test.moves {
				w.waitIdle()
				require.Zero(t, w.storage.count("detach d a"))
				require.True(t, w.statuses.hasVolume("a", "d"), "and it must stay on the node's list")
				return
			}
			w.waitState("d", "a", detached)
			require.Equal(t, test.reason, <-w.forced)
			require.False(t, w.statuses.hasVolume("a", "d"))
		})
	}
}

func TestDeletedNodeHasNothingMountedAfterItsLease(t *testing.T) {
	w := newFixture(t)
	w.start()
	w.node("a")
	pod := w.attachAndMount("d", "a")
	w.deletePod(pod, "a", "d")
	w.deleteNode("a")
	w.waitIdle()
	w.requireDetachAfterGrace()
	require.Empty(t, w.forced, "that is no forced detach")
}

// B-17: the Pods of a deleted Node are deleted later than the Node, and their volumes do not wait for the lease again.
func TestGraceOfADeletedNodeStartsWithItsDeletion(t *testing.T) {
	w := newFixture(t)
	w.start()
	w.node("a")
	pod := w.attachAndMount("d", "a")
	w.deleteNode("a")
	w.waitIdle()
	w.clock.Step(reconciler.DefaultNodeGoneGrace)
	w.waitIdle()
	require.Zero(t, w.storage.count("detach d a"), "a Pod uses it")
	w.deletePod(pod, "a", "d")
	w.waitState("d", "a", detached)
	require.Empty(t, w.forced, "that is no forced detach")
}

// B-17: a Node that was created again and is deleted again had a lease of its own.
func TestNodeThatIsDeletedTwice(t *testing.T) {
	w := newFixture(t)
	w.start()
	w.node("a")
	pod := w.attachAndMount("d", "a")
	w.deletePod(pod, "a", "d")
	w.deleteNode("a")
	w.waitIdle()
	again := w.pod("ns", "again", "a", disk("d"))
	w.waitIdle()
	w.node("a")
	w.statuses.withLock(func() { w.statuses.gone["a"] = false })
	w.waitIdle()
	w.clock.Step(time.Hour)
	w.deleteNode("a")
	w.waitIdle()
	w.deletePod(again, "a", "d")
	w.waitIdle()
	w.requireDetachAfterGrace()
}

// requireDetachAfterGrace requires that the volume d is detached from the Node a, which has just been deleted, when its lease has
// expired, and not before.
func (w *fixture) requireDetachAfterGrace() {
	w.t.Helper()
	w.clock.Step(reconciler.DefaultNodeGoneGrace - 1)
	w.waitIdle()
	require.Zero(w.t, w.storage.count("detach d a"), "the lease has not expired")
	w.clock.Step(1)
	w.waitState("d", "a", detached)
}

// the timer starts once, and afresh when the Pod has been back.
func TestPodThatComesBackStartsTheTimerAfresh(t *testing.T) {
	w := newFixture(t, func(d *reconciler.Deps, _ *reconciler.Config) { d.Nodes = nil })
	w.start()
	w.node("a")
	pod := w.attachAndMount("d", "a")
	w.deletePod(pod, "a", "d")
	w.waitIdle()
	w.clock.Step(maxWait)
	w.waitIdle()
	pod = w.pod("ns", "again", "a", disk("d"))
	w.waitIdle()
	at, _ := w.actual.GetAttachedVolume(unique("d"), "a")
	require.Zero(t, at.DetachRequestedTime)
	w.deletePod(pod, "a", "d")
	w.waitIdle()
	w.clock.Step(maxWait)
	w.waitIdle()
	require.Zero(t, w.storage.count("detach d a"))
	w.clock.Step(1)
	w.waitState("d", "a", detached)
}

// the list is written before the detach; if that fails there is none, and other nodes do not suffer.
func TestListIsWrittenBeforeTheDetach(t *testing.T) {
	w := newFixture(t)
	w.start()
	w.node("a")
	w.node("b")
	podA, podB := w.attachAndMount("d", "a"), w.attachAndMount("e", "b")
	w.statuses.withLock(func() {
		w.statuses.fail = func(n types.NodeName) error {
			if n == "a" {
				return errors.New("server is away")
			}
			return nil
		}
	})
	w.setMounted("a")
	w.setMounted("b")
	w.deletePod(podA, "a", "d")
	w.deletePod(podB, "b", "e")
	w.waitState("e", "b", detached)
	w.waitIdle()
	require.Zero(t, w.storage.count("detach d a"))
	require.True(t, w.statuses.hasVolume("a", "d"))
	w.statuses.withLock(func() {
		require.LessOrEqual(t, w.statuses.writes["a"], 3, "a failure must not be repeated at once")
		w.statuses.fail = nil
	})
	w.eventually(func() bool { w.clock.Step(100 * time.Millisecond); return w.storage.count("detach d a") == 1 }, "retry")
	require.False(t, w.statuses.hasVolume("a", "d"), "the list must be written before the detach")
	w.waitState("d", "a", detached)
}

// holdDetach starts the reconciler, and brings the disk d to where it is about to be detached from the node a: the write of the node's list has
// begun, and goes on with open.
func (w *fixture) holdDetach() (open func()) {
	w.t.Helper()
	w.start()
	w.node("a")
	pod := w.attachAndMount("d", "a")
	w.setMounted("a")
	w.waitIdle()
	open = w.statuses.hold()
	w.deletePod(pod, "a", "d")
	w.eventually(w.statuses.isHolding, "the write must have begun")
	return open
}

// A Pod that comes back while the list is being written keeps its volume.
func TestPodThatComesBackDuringTheWrite(t *testing.T) {
	w := newFixture(t)
	open := w.holdDetach()
	w.pod("ns", "again", "a", disk("d"))
	open()
	w.waitIdle()
	w.eventually(func() bool { return w.statuses.hasVolume("a", "d") }, "it must be listed again")
	require.Zero(t, w.storage.count("detach d a"))
	require.Equal(t, attached, w.actual.GetAttachState(unique("d"), "a"))
}

// B-17: a node that reports a volume as mounted while the list is being written, and whose Node is deleted then, has its lease, too.
func TestVolumeThatIsMountedDuringTheWrite(t *testing.T) {
	w := newFixture(t)
	open := w.holdDetach()
	w.setMounted("a", "d")
	w.deleteNode("a")
	open()
	w.waitIdle()
	w.requireDetachAfterGrace()
}

// a failed detach leaves an uncertain attachment that is off the list, and is retried after a pause
// during which the node's status is left alone.
func TestFailedDetach(t *testing.T) {
	w := newFixture(t)
	w.start()
	w.node("a")
	pod := w.attachAndMount("d", "a")
	w.actual.SetVolumesMountedByNode(nil, "a") // stale: the API server knows better
	w.deletePod(pod, "a", "d")
	w.waitState("d", "a", uncertain)
	w.waitIdle()
	require.Zero(t, w.storage.count("detach d a"), "the check must have stopped it")
	require.False(t, w.statuses.hasVolume("a", "d"))
	writes := 0
	w.statuses.withLock(func() { writes = w.statuses.writes["a"] })
	w.actual.SetVolumesMountedByNode([]corev1.UniqueVolumeName{unique("d")}, "a")
	w.setMounted("a")
	w.waitIdle()
	w.statuses.withLock(func() { require.Equal(t, writes, w.statuses.writes["a"]) })
	w.clock.Step(500 * time.Millisecond)
	w.waitState("d", "a", detached)
}

// operations on a shared volume run side by side, on an exclusive one they do not.
func TestOperationsSideBySide(t *testing.T) {
	w := newFixture(t)
	w.start()
	w.node("a")
	w.node("b")
	hold := make(chan struct{})
	w.storage.withLock(func() { w.storage.block = hold })
	for _, node := range []types.NodeName{"a", "b"} {
		w.pod("ns", "shared-"+string(node), node, disk("shared", corev1.ReadWriteMany))
		w.pod("ns", "own-"+string(node), node, disk("own"))
	}
	w.eventually(func() bool { return w.storage.count("attach shared a")+w.storage.count("attach shared b") == 2 }, "shared")
	w.eventually(func() bool { return w.storage.count("attach own a")+w.storage.count("attach own b") == 1 }, "own")
	w.storage.withLock(func() { w.storage.block = nil })
	close(hold)
	w.waitState("shared", "a", attached)
	w.waitState("shared", "b", attached)
	w.waitIdle()
	require.Empty(t, w.storage.problems)
}

// what is known by name only is detached by name; what cannot be detached does no harm.
func TestVolumesKnownByName(t *testing.T) {
	w := newFixture(t)
	for _, name := range []corev1.UniqueVolumeName{unique("d"), "nonsense", "other/plugin/x"} {
		_, err := w.actual.AddVolumeNode(name, nil, "a", "", true)
		require.NoError(t, err)
	}
	w.node("a")
	w.setMounted("a")
	w.start()
	w.waitState("d", "a", detached)
	w.waitIdle()
	w.eventually(func() bool {
		n := 0
		w.statuses.withLock(func() { n = len(w.statuses.lists["a"]) })
		return n == 2
	}, "the others must go back on the list")
}

// B-12, B-13: verification.
func TestVerification(t *testing.T) {
	w := newFixture(t, func(_ *reconciler.Deps, c *reconciler.Config) { c.SyncDuration = time.Minute })
	w.start()
	w.node("a")
	w.attachAndMount("d", "a")
	w.waitIdle()
	require.Zero(t, w.storage.count("verify a"))
	w.clock.Step(time.Minute + 2)
	w.eventually(func() bool { return w.storage.count("verify a") == 1 }, "verification")
	w.waitIdle()
	require.Equal(t, 1, w.storage.count("attach d a"), "a storage that does not answer has lost nothing")
	w.storage.withLock(func() {
		w.storage.verify = func(disk string, node types.NodeName) operationexecutor.Verdict {
			if disk == "d" {
				return operationexecutor.VerdictDetached
			}
			return operationexecutor.VerdictAttached
		}
	})
	w.eventually(func() bool { w.clock.Step(time.Second); return w.storage.count("attach d a") == 2 }, "it must be attached again")
	w.waitState("d", "a", attached)
}

// A volume that drains from a node with many others costs the node few writes.
func TestDrainIsFewWrites(t *testing.T) {
	w := newFixture(t)
	w.start()
	w.node("a")
	pods := make(map[string]*corev1.Pod)
	var names []string
	for i := range 50 {
		d := string(rune('A'+i%26)) + string(rune('a'+i/26))
		names = append(names, d)
		pods[d] = w.pod("ns", d, "a", disk(d))
	}
	for _, d := range names {
		w.waitState(d, "a", attached)
		w.eventually(func() bool { return w.statuses.hasVolume("a", d) }, d)
	}
	w.setMounted("a", names...)
	for d, pod := range pods {
		w.deletePod(pod, "a", d)
	}
	w.waitIdle()
	before := 0
	open := w.statuses.hold()
	w.statuses.withLock(func() { before = w.statuses.writes["a"] })
	w.setMounted("a")
	w.waitIdle()
	open()
	for _, d := range names {
		w.waitState(d, "a", detached)
	}
	w.statuses.withLock(func() { require.LessOrEqual(t, w.statuses.writes["a"]-before, 2) })
}
