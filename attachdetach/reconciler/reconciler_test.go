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

// attachedOn brings the world to where the disk is attached to the node for a Pod and mounted.
func (w *world) attachedOn(d string, node types.NodeName) *corev1.Pod {
	w.t.Helper()
	pod := w.pod("ns", "pod-"+d, node, disk(d))
	w.becomes(d, node, attached)
	require.Contains(w.t, w.event(), "AttachVolume.Attach succeeded for volume \""+d+"\" ")
	w.eventually(func() bool { return w.statuses.lists1(node, d) }, "the node must list the disk")
	w.mounted(node, d)
	return pod
}

// the documented constructor, with its nine parameters.
func TestRunWithTheDocumentedConstructor(t *testing.T) {
	w := newWorld(t)
	r := reconciler.NewReconciler(time.Hour, maxWait, 0, true, w.desired, w.actual, w.executor, w.statuses, w.events)
	w.desired.AddNode("a")
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { r.Run(stop); close(done) }()
	hold := make(chan struct{})
	w.storage.set(func() { w.storage.hold = hold })
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
		change func(*reconciler.Options)
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
			change: func(o *reconciler.Options) { o.DisableForceDetachOnTimeout = true }},
		{name: "taint", node: taint, moves: true, reason: "out-of-service"},
		{name: "taint even if forcing is off", node: taint, moves: true, reason: "out-of-service",
			change: func(o *reconciler.Options) { o.DisableForceDetachOnTimeout = true }},
		{name: "nothing is known of nodes", after: maxWait + 1, moves: true, reason: "timeout",
			change: func(o *reconciler.Options) { o.Nodes = nil }},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			if test.change != nil {
				w = newWorld(t, test.change)
			}
			w.start()
			w.node("a")
			pod := w.attachedOn("d", "a")
			w.drop(pod, "a", "d")
			w.idle()
			if test.node != nil {
				w.node("a", test.node)
			}
			w.idle()
			w.clock.Step(test.after)
			if !test.moves {
				w.idle()
				require.Zero(t, w.storage.count("detach d a"))
				require.True(t, w.statuses.lists1("a", "d"), "and it must stay on the node's list")
				return
			}
			w.becomes("d", "a", detached)
			require.Equal(t, test.reason, <-w.forced)
			require.False(t, w.statuses.lists1("a", "d"))
		})
	}
}

func TestDeletedNodeHasNothingMountedAfterItsLease(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.node("a")
	pod := w.attachedOn("d", "a")
	w.drop(pod, "a", "d")
	node, _, _ := w.nodes.GetByKey("a")
	require.NoError(t, w.nodes.Delete(node))
	w.statuses.set(func() { w.statuses.gone["a"] = true })
	w.engine.NodeChanged("a")
	w.idle()
	w.clock.Step(reconciler.DefaultNodeGoneGrace - 1)
	w.idle()
	require.Zero(t, w.storage.count("detach d a"))
	w.clock.Step(1)
	w.becomes("d", "a", detached)
	require.Empty(t, w.forced, "that is no forced detach")
}

// the timer starts once, and afresh when the Pod has been back.
func TestPodThatComesBackStartsTheTimerAfresh(t *testing.T) {
	w := newWorld(t, func(o *reconciler.Options) { o.Nodes = nil })
	w.start()
	w.node("a")
	pod := w.attachedOn("d", "a")
	w.drop(pod, "a", "d")
	w.idle()
	w.clock.Step(maxWait)
	w.idle()
	pod = w.pod("ns", "again", "a", disk("d"))
	w.idle()
	at, _ := w.actual.GetAttachedVolume(unique("d"), "a")
	require.Zero(t, at.DetachRequestedTime)
	w.drop(pod, "a", "d")
	w.idle()
	w.clock.Step(maxWait)
	w.idle()
	require.Zero(t, w.storage.count("detach d a"))
	w.clock.Step(1)
	w.becomes("d", "a", detached)
}

// the list is written before the detach; if that fails there is none, and other nodes do not suffer.
func TestListIsWrittenBeforeTheDetach(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.node("a")
	w.node("b")
	podA, podB := w.attachedOn("d", "a"), w.attachedOn("e", "b")
	w.statuses.set(func() {
		w.statuses.fail = func(n types.NodeName) error {
			if n == "a" {
				return errors.New("server is away")
			}
			return nil
		}
	})
	w.mounted("a")
	w.mounted("b")
	w.drop(podA, "a", "d")
	w.drop(podB, "b", "e")
	w.becomes("e", "b", detached)
	w.idle()
	require.Zero(t, w.storage.count("detach d a"))
	require.True(t, w.statuses.lists1("a", "d"))
	w.statuses.set(func() {
		require.LessOrEqual(t, w.statuses.writes["a"], 3, "a failure must not be repeated at once")
		w.statuses.fail = nil
	})
	w.eventually(func() bool { w.clock.Step(100 * time.Millisecond); return w.storage.count("detach d a") == 1 }, "retry")
	require.False(t, w.statuses.lists1("a", "d"), "the list must be written before the detach")
	w.becomes("d", "a", detached)
}

// A Pod that comes back while the list is being written keeps its volume.
func TestPodThatComesBackDuringTheWrite(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.node("a")
	pod := w.attachedOn("d", "a")
	w.mounted("a")
	w.idle()
	hold := make(chan struct{})
	w.statuses.set(func() { w.statuses.hold = hold })
	w.drop(pod, "a", "d")
	w.eventually(func() bool { return len(w.actual.GetNodesToUpdateStatusFor()) == 0 }, "the write must have begun")
	w.pod("ns", "again", "a", disk("d"))
	w.statuses.set(func() { w.statuses.hold = nil })
	close(hold)
	w.idle()
	w.eventually(func() bool { return w.statuses.lists1("a", "d") }, "it must be listed again")
	require.Zero(t, w.storage.count("detach d a"))
	require.Equal(t, attached, w.actual.GetAttachState(unique("d"), "a"))
}

// a failed detach leaves an uncertain attachment that is off the list, and is retried after a pause
// during which the node's status is left alone.
func TestFailedDetach(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.node("a")
	pod := w.attachedOn("d", "a")
	w.actual.SetVolumesMountedByNode(nil, "a") // stale: the API server knows better
	w.drop(pod, "a", "d")
	w.becomes("d", "a", uncertain)
	w.idle()
	require.Zero(t, w.storage.count("detach d a"), "the check must have stopped it")
	require.False(t, w.statuses.lists1("a", "d"))
	writes := 0
	w.statuses.set(func() { writes = w.statuses.writes["a"] })
	w.actual.SetVolumesMountedByNode([]corev1.UniqueVolumeName{unique("d")}, "a")
	w.mounted("a")
	w.idle()
	w.statuses.set(func() { require.Equal(t, writes, w.statuses.writes["a"]) })
	w.clock.Step(500 * time.Millisecond)
	w.becomes("d", "a", detached)
}

// operations on a shared volume run side by side, on an exclusive one they do not.
func TestOperationsSideBySide(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.node("a")
	w.node("b")
	hold := make(chan struct{})
	w.storage.set(func() { w.storage.hold = hold })
	for _, node := range []types.NodeName{"a", "b"} {
		w.pod("ns", "shared-"+string(node), node, disk("shared", corev1.ReadWriteMany))
		w.pod("ns", "own-"+string(node), node, disk("own"))
	}
	w.eventually(func() bool { return w.storage.count("attach shared a")+w.storage.count("attach shared b") == 2 }, "shared")
	w.eventually(func() bool { return w.storage.count("attach own a")+w.storage.count("attach own b") == 1 }, "own")
	w.storage.set(func() { w.storage.hold = nil })
	close(hold)
	w.becomes("shared", "a", attached)
	w.becomes("shared", "b", attached)
	w.idle()
	require.Empty(t, w.storage.problems)
}

// what is known by name only is detached by name; what nobody can detach does no harm.
func TestVolumesKnownByName(t *testing.T) {
	w := newWorld(t)
	for _, name := range []corev1.UniqueVolumeName{unique("d"), "nonsense", "other/plugin/x"} {
		_, err := w.actual.AddVolumeNode(name, nil, "a", "", true)
		require.NoError(t, err)
	}
	w.node("a")
	w.mounted("a")
	w.start()
	w.becomes("d", "a", detached)
	w.idle()
	w.eventually(func() bool {
		n := 0
		w.statuses.set(func() { n = len(w.statuses.lists["a"]) })
		return n == 2
	}, "the others must go back on the list")
}

// B-12, B-13: verification.
func TestVerification(t *testing.T) {
	w := newWorld(t, func(o *reconciler.Options) { o.SyncDuration = time.Minute })
	w.start()
	w.node("a")
	w.attachedOn("d", "a")
	w.idle()
	require.Zero(t, w.storage.count("verify a"))
	w.clock.Step(time.Minute + 2)
	w.eventually(func() bool { return w.storage.count("verify a") == 1 }, "verification")
	w.idle()
	require.Equal(t, 1, w.storage.count("attach d a"), "a storage that does not answer has lost nothing")
	w.storage.set(func() {
		w.storage.verify = func(disk string, node types.NodeName) operationexecutor.Verdict {
			if disk == "d" {
				return operationexecutor.VerdictDetached
			}
			return operationexecutor.VerdictAttached
		}
	})
	w.eventually(func() bool { w.clock.Step(time.Second); return w.storage.count("attach d a") == 2 }, "it must be attached again")
	w.becomes("d", "a", attached)
}

// A volume that drains from a node with many others costs the node few writes.
func TestDrainIsFewWrites(t *testing.T) {
	w := newWorld(t)
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
		w.becomes(d, "a", attached)
		w.eventually(func() bool { return w.statuses.lists1("a", d) }, d)
	}
	w.mounted("a", names...)
	for d, pod := range pods {
		w.drop(pod, "a", d)
	}
	w.idle()
	before := 0
	hold := make(chan struct{})
	w.statuses.set(func() { before = w.statuses.writes["a"]; w.statuses.hold = hold })
	w.mounted("a")
	w.idle()
	w.statuses.set(func() { w.statuses.hold = nil })
	close(hold)
	for _, d := range names {
		w.becomes(d, "a", detached)
	}
	w.statuses.set(func() { require.LessOrEqual(t, w.statuses.writes["a"]-before, 2) })
}
