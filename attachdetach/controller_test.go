package attachdetach_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/attachdetach"
	"github.com/berth-dev/berth/attachdetach/csi"
	"github.com/berth-dev/berth/attachdetach/reconciler"
	"github.com/berth-dev/berth/timeline"
)

func TestVolumeFollowsItsPod(t *testing.T) {
	w := newFixture(t)
	w.node("a")
	w.node("b")
	w.disk("d")
	w.start()
	pod := w.pod("web", "a", "d")
	w.eventually(w.attachedAndReported("d", "a"), "the disk must be attached where the pod is")
	require.Equal(t, `Normal SuccessfulAttachVolume AttachVolume.Attach succeeded for volume "pv-d" `, w.nextEvent())
	va := w.attachment("d", "a")
	require.Equal(t, driver, va.Spec.Attacher)
	require.Equal(t, "pv-d", *va.Spec.Source.PersistentVolumeName)
	record, ok := w.timeline.Record(pod.UID)
	require.True(t, ok)
	require.Equal(t, timeline.StageAttach, record.Stages[0].Name)
	require.Empty(t, record.Stages[0].Error)
	w.eventually(func() bool {
		return w.metric("attachdetach_controller_total_volumes", "actual_state_of_world") == 1 &&
			w.metric("attachdetach_controller_total_volumes", "desired_state_of_world") == 1 &&
			w.metric("storage_count_attachable_volumes_in_use", "kubernetes.io/csi:"+driver) == 1
	}, "metrics must count both states of the world")

	w.updateNodeStatus("a", inUse(unique("d")))
	w.deletePod("web")
	w.pod("web2", "b", "d")
	w.stepUntilEvent(`Warning FailedAttachVolume Multi-Attach error for volume "pv-d" Volume is already exclusively ` +
		`attached to one node and can't be attached to another`)
	require.NotNil(t, w.attachment("d", "a"), "a mounted disk must stay")
	w.updateNodeStatus("a", inUse())
	w.eventually(w.attachedAndReported("d", "b"), "the disk must move when the node has unmounted it")
	require.True(t, w.released("d", "a")())
}

func TestPodThatEndsReleasesItsVolume(t *testing.T) {
	w := newFixture(t)
	w.node("a")
	w.disk("d")
	w.disk("e")
	w.start()
	pod := w.pod("web", "a", "d", "e")
	w.eventually(w.attachedAndReported("d", "a"), "d")
	w.eventually(w.attachedAndReported("e", "a"), "e")
	pod.Status.Phase = corev1.PodSucceeded
	_, err := w.client.CoreV1().Pods("default").UpdateStatus(context.Background(), pod, metav1.UpdateOptions{})
	require.NoError(t, err)
	w.eventually(w.released("d", "a"), "d")
	w.eventually(w.released("e", "a"), "e")
}

func TestClaimThatIsBoundLater(t *testing.T) {
	w := newFixture(t)
	w.node("a")
	w.start()
	w.pod("web", "a", "d")
	w.disk("d")
	w.eventually(w.attachedAndReported("d", "a"), "the binding alone must bring the attach about")
}

func TestOnClaimChangedGetsClaimsAndTheirVolumes(t *testing.T) {
	w := newFixture(t)
	w.disk("before")
	changed := make(chan string, 100)
	w.claimChanged = func(namespace, name string) { changed <- namespace + "/" + name }
	w.start()
	await := func(claim string) {
		t.Helper()
		for {
			select {
			case got := <-changed:
				if got == claim {
					return
				}
			case <-time.After(testTimeout):
				t.Fatalf("no notification of %s", claim)
			}
		}
	}
	await("default/before") // once for the claim
	await("default/before") // and once for its volume
	volumes := w.client.CoreV1().PersistentVolumes()
	pv, err := volumes.Get(t.Context(), "pv-before", metav1.GetOptions{})
	require.NoError(t, err)
	pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
	_, err = volumes.Update(t.Context(), pv, metav1.UpdateOptions{})
	require.NoError(t, err)
	await("default/before")
	require.NoError(t, w.client.CoreV1().PersistentVolumeClaims("default").Delete(t.Context(), "before", metav1.DeleteOptions{}))
	await("default/before")
}

// TestFailedAttachOfAPodThatGoes: the node has nothing mounted, and says nothing more: the silence must not be waited out.
func TestFailedAttachOfAPodThatGoes(t *testing.T) {
	w := newFixture(t)
	w.node("a")
	w.disk("d")
	w.withLock(func() { w.attachError = "no slot is free" })
	w.start()
	w.pod("web", "a", "d")
	require.Contains(t, w.nextEvent(), "no slot is free")
	w.deletePod("web")
	w.eventually(func() bool { return w.attachment("d", "a") == nil }, "the clock stands still, and the node is silent")
}

func TestWhatIsNotOurs(t *testing.T) {
	w := newFixture(t)
	w.node("a")
	w.node("plain", func(n *corev1.Node) { n.Annotations = nil })
	w.node("other", func(n *corev1.Node) { n.Labels = map[string]string{"pool": "other"} })
	for _, disk := range []string{"d", "e", "f"} {
		w.disk(disk)
	}
	_, err := w.client.StorageV1().CSIDrivers().Create(context.Background(), &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: "local.example.com"},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	selector, err := labels.Parse("pool!=other")
	require.NoError(t, err)
	foreign := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{
		Name: csi.AttachmentName(driver, "f", "other"), UID: "foreign",
	}}
	foreign.Spec = storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: "other"}
	foreign.Spec.Source.PersistentVolumeName = ptr.To("pv-f")
	foreign.Status.Attached = true
	require.NoError(t, w.client.Tracker().Add(foreign))
	w.start(attachdetach.Config{NodeSelector: selector})
	w.pod("p1", "plain", "d")
	w.pod("p2", "other", "e")
	w.disk("last")
	w.pod("p3", "a", "last")
	w.pod("p4", "a", "f")
	require.Contains(t, w.nextEvent()+w.nextEvent(), "Multi-Attach error for volume \"pv-f\"", "what another controller attached counts")
	w.eventually(w.attachedAndReported("last", "a"), "the last pod's disk")
	require.Nil(t, w.attachment("d", "plain"), "a node whose kubelet attaches by itself")
	require.Nil(t, w.attachment("e", "other"), "a node that is not selected")
	require.NotNil(t, w.attachment("f", "other"), "an attachment of such a node must stay")
	require.Nil(t, w.attachment("f", "a"))
	w.withLock(func() { require.Zero(t, w.patches["other"], "a node that is not selected is not written") })
	require.NoError(t, w.client.Tracker().Delete(storagev1.SchemeGroupVersion.WithResource("volumeattachments"), "", foreign.Name))
	w.eventually(w.attachedAndReported("f", "a"), "once the other controller has detached it, it is attached here")
}

func TestDriverThatNeedsNoAttachment(t *testing.T) {
	w := newFixture(t)
	w.node("a")
	w.disk("d")
	w.start()
	w.pod("web", "a", "d")
	w.eventually(w.attachedAndReported("d", "a"), "without a CSIDriver it is attached")
	_, err := w.client.StorageV1().CSIDrivers().Create(context.Background(), &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	w.eventually(w.released("d", "a"), "with a CSIDriver that needs none it is detached")
}

func TestAttachErrorIsReportedAndRetriedWhenTheAttacherSucceeds(t *testing.T) {
	w := newFixture(t)
	w.node("a")
	w.disk("d")
	w.withLock(func() { w.attachError = "no 100%d luck" })
	w.start()
	w.pod("web", "a", "d")
	require.Equal(t, `Warning FailedAttachVolume AttachVolume.Attach failed for volume "pv-d" : no 100%d luck`, w.nextEvent())
	require.False(t, w.reported("d", "a"))
	w.withLock(func() { w.attachError = "" })
	w.runAttacherOn(w.attachment("d", "a").DeepCopy()) // the attacher tries again by itself; no time passes here
	w.eventually(w.attachedAndReported("d", "a"), "the attacher's success must end the pause")
}

func TestRestart(t *testing.T) {
	w := newFixture(t)
	for _, node := range []string{"a", "b", "c"} {
		w.node(node)
	}
	for _, disk := range []string{"wanted", "unwanted", "halfway"} {
		w.disk(disk)
	}
	w.start()
	w.pod("p1", "a", "wanted")
	w.pod("p2", "b", "unwanted")
	w.eventually(w.attachedAndReported("wanted", "a"), "wanted")
	w.eventually(w.attachedAndReported("unwanted", "b"), "unwanted")
	w.withLock(func() { w.attacherStopped = true })
	w.pod("p3", "c", "halfway")
	w.eventually(func() bool { return w.attachment("halfway", "c") != nil }, "the attach must have begun")
	w.stopController()
	w.deletePod("p2")
	w.deletePod("p3")
	w.withLock(func() { w.attacherStopped = false; clear(w.patches) })
	w.runAttacherOn(w.attachment("halfway", "c").DeepCopy())

	w.start()
	w.eventually(w.released("unwanted", "b"), "a volume that no Pod uses must be detached")
	w.eventually(w.released("halfway", "c"), "an attachment that no node's status lists must be found and detached")
	require.True(t, w.attachedAndReported("wanted", "a")())
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Zero(t, w.patches["a"], "a node for which nothing changed must not be written")
}

func TestAttachmentDeletedByOthersIsCreatedAgain(t *testing.T) {
	w := newFixture(t)
	w.node("a")
	w.disk("d")
	w.start()
	w.pod("web", "a", "d")
	w.eventually(w.attachedAndReported("d", "a"), "first")
	uid := w.attachment("d", "a").UID
	err := w.client.StorageV1().VolumeAttachments().Delete(context.Background(),
		csi.AttachmentName(driver, "d", "a"), metav1.DeleteOptions{})
	require.NoError(t, err)
	// The first try may meet the old object on its way out.
	w.eventually(func() bool {
		w.clock.Step(time.Second)
		va := w.attachment("d", "a")
		return va != nil && va.UID != uid && w.attachedAndReported("d", "a")()
	}, "the disk must be attached again")
}

func TestNodeFailures(t *testing.T) {
	for _, test := range []struct {
		name   string
		config attachdetach.Config
		fail   func(*fixture)
		wait   time.Duration // after which the disk moves, and not before; 0 is at once
		forced string
	}{
		{name: "out of service", forced: "out-of-service", fail: func(w *fixture) {
			w.updateNodeStatus("a", func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
			})
		}},
		{name: "not ready", forced: "timeout", wait: 6 * time.Minute, fail: func(w *fixture) { w.updateNodeStatus("a", notReady) }},
		{name: "not ready, and with a limit of its own", forced: "timeout", wait: 90 * time.Second,
			config: attachdetach.Config{MaxWaitForUnmount: 1000 * time.Hour}, fail: func(w *fixture) {
				w.updateNodeStatus("a", notReady)
				w.updateNodeStatus("a", func(n *corev1.Node) {
					n.Annotations = map[string]string{reconciler.AnnMaxWaitForUnmount: "90s"}
				})
			}},
		{name: "deleted", wait: 40 * time.Second, fail: func(w *fixture) {
			require.NoError(w.t, w.client.CoreV1().Nodes().Delete(context.Background(), "a", metav1.DeleteOptions{}))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newFixture(t)
			w.node("a")
			w.node("b")
			w.disk("d")
			w.start(test.config)
			w.pod("web", "a", "d")
			w.eventually(w.attachedAndReported("d", "a"), "first")
			w.updateNodeStatus("a", inUse(unique("d")))
			since := w.clock.Now()
			w.deletePod("web")
			w.pod("web2", "b", "d")
			require.Contains(t, w.nextEvent(), "SuccessfulAttachVolume")
			w.stepUntilEvent("Multi-Attach") // so the detach was requested, and the node has not unmounted it in the usual time
			if test.forced != "timeout" {
				since = w.clock.Now()
			}
			test.fail(w)
			var moved time.Time
			w.eventually(func() bool {
				if w.attachment("d", "a") == nil {
					moved = w.clock.Now()
					return true
				}
				if test.wait > 0 {
					w.clock.Step(time.Second)
				}
				return false
			}, "the disk must be detached")
			require.GreaterOrEqual(t, moved.Sub(since), test.wait)
			w.eventually(w.attachedAndReported("d", "b"), "the disk must move")
			require.Nil(t, w.attachment("d", "a"))
			for _, reason := range []string{"timeout", "out-of-service"} {
				want := 0.0
				if reason == test.forced {
					want = 1
					require.Contains(t, w.nextEvent()+w.nextEvent(), "it is assumed to be down")
				}
				require.Equal(t, want, w.metric("attachdetach_controller_forced_detaches", reason))
			}
		})
	}
}

func TestSharedVolumeIsOnBothNodes(t *testing.T) {
	w := newFixture(t)
	w.node("a")
	w.node("b")
	w.disk("d", corev1.ReadWriteMany)
	w.start()
	w.pod("p1", "a", "d")
	w.pod("p2", "b", "d")
	w.eventually(w.attachedAndReported("d", "a"), "a")
	w.eventually(w.attachedAndReported("d", "b"), "b")
	w.deletePod("p1")
	w.eventually(w.released("d", "a"), "the one that is not wanted must go")
	require.True(t, w.attachedAndReported("d", "b")(), "and only that one")
}

func TestConfigIsChecked(t *testing.T) {
	_, err := attachdetach.New(attachdetach.Deps{}, attachdetach.Config{})
	require.ErrorContains(t, err, "Deps.Client")
	w := newFixture(t)
	_, err = attachdetach.New(attachdetach.Deps{Client: w.client}, attachdetach.Config{MaxWaitForUnmount: -1})
	require.ErrorContains(t, err, "MaxWaitForUnmount")
}
