package attachdetach_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/attachdetach"
	"github.com/berth-dev/berth/attachdetach/csi"
	"github.com/berth-dev/berth/internal/testwatch"
)

// sync returns when the controller has processed all earlier changes: then it has attached a disk of its own.
func (w *fixture) sync() {
	w.t.Helper()
	w.withLock(func() { w.uid++ })
	name := "sync-" + string(rune('a'+w.uid%26)) + strings.Repeat("x", w.uid/26)
	w.node(name + "-node")
	w.disk(name)
	w.pod(name, name+"-node", name)
	w.eventually(w.attachedAndReported(name, name+"-node"), "the controller must work")
}

func (w *fixture) update(pod *corev1.Pod) {
	w.t.Helper()
	require.NoError(w.t, w.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, pod.Namespace))
}

var running = corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}

// a Pod that is being deleted has its volumes for as long as something of it runs.
func TestPodThatIsBeingDeletedKeepsItsVolumeWhileItRuns(t *testing.T) {
	for name, set := range map[string]func(*corev1.PodStatus, []corev1.ContainerStatus){
		"container":      func(s *corev1.PodStatus, c []corev1.ContainerStatus) { s.ContainerStatuses = c },
		"init container": func(s *corev1.PodStatus, c []corev1.ContainerStatus) { s.InitContainerStatuses = c },
		"ephemeral":      func(s *corev1.PodStatus, c []corev1.ContainerStatus) { s.EphemeralContainerStatuses = c },
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			w.node("a")
			w.disk("d")
			w.start()
			pod := w.pod("web", "a", "d")
			w.eventually(w.attachedAndReported("d", "a"), "first")
			pod.DeletionTimestamp = ptr.To(metav1.Now())
			set(&pod.Status, []corev1.ContainerStatus{running})
			w.update(pod)
			w.sync()
			w.clock.Step(time.Hour)
			w.sync()
			require.True(t, w.attachedAndReported("d", "a")(), "no timer runs while the Pod may run")
			pod = pod.DeepCopy()
			set(&pod.Status, []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}})
			w.update(pod)
			w.eventually(w.released("d", "a"), "nothing of it runs")
		})
	}
}

// a node can ask to keep volumes of Pods that have ended.
func TestNodeThatKeepsTerminatedPodsVolumes(t *testing.T) {
	w := newFixture(t)
	w.node("a", func(n *corev1.Node) { n.Annotations["volumes.kubernetes.io/keep-terminated-pod-volumes"] = "true" })
	w.disk("d")
	w.start()
	pod := w.pod("web", "a", "d")
	w.eventually(w.attachedAndReported("d", "a"), "first")
	pod.Status.Phase = corev1.PodSucceeded
	w.update(pod)
	w.sync()
	require.True(t, w.attachedAndReported("d", "a")())
	w.deletePod("web")
	w.eventually(w.released("d", "a"), "the Pod is gone")
}

// a claim and a volume that do not name each other are not bound.
func TestClaimMustBeItsVolumes(t *testing.T) {
	w := newFixture(t)
	w.node("a")
	w.start()
	w.disk("d")
	pv, err := w.client.CoreV1().PersistentVolumes().Get(t.Context(), "pv-d", metav1.GetOptions{})
	require.NoError(t, err)
	right := pv.Spec.ClaimRef.UID
	pv.Spec.ClaimRef.UID = "an-earlier-claim"
	_, err = w.client.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{})
	require.NoError(t, err)
	w.sync()
	w.pod("web", "a", "d")
	w.sync()
	require.Nil(t, w.attachment("d", "a"))
	pv = pv.DeepCopy()
	pv.Spec.ClaimRef.UID = right
	_, err = w.client.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{})
	require.NoError(t, err)
	w.eventually(w.attachedAndReported("d", "a"), "now it is bound")
}

// an ephemeral volume's claim has the Pod's name and the volume's, and counts only if the Pod owns it.
func TestEphemeralVolume(t *testing.T) {
	w := newFixture(t)
	w.node("a")
	w.start()
	w.disk("web-scratch")
	pod := w.pod("web", "a")
	pod.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{
		Ephemeral: &corev1.EphemeralVolumeSource{}}}}
	w.update(pod)
	w.sync()
	require.Nil(t, w.attachment("web-scratch", "a"), "the claim of another Pod")
	claim, err := w.client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "web-scratch", metav1.GetOptions{})
	require.NoError(t, err)
	claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))}
	_, err = w.client.CoreV1().PersistentVolumeClaims("default").Update(t.Context(), claim, metav1.UpdateOptions{})
	require.NoError(t, err)
	w.eventually(w.attachedAndReported("web-scratch", "a"), "its own claim")
}

// R-78, B-15: a Pod of the same name with another identity has its own volumes, all of them, and no others.
func TestPodReplacedUnderItsName(t *testing.T) {
	w := newFixture(t)
	w.node("a")
	w.node("b")
	for _, d := range []string{"d", "e", "f"} {
		w.disk(d)
	}
	w.start()
	pod := w.pod("web", "a", "d", "e")
	w.eventually(w.attachedAndReported("d", "a"), "d")
	w.eventually(w.attachedAndReported("e", "a"), "e")
	// An informer that lost its watch sees the new object as an update of the old one.
	other := pod.DeepCopy()
	other.UID, other.Spec.NodeName = "another", "b"
	other.Spec.Volumes = other.Spec.Volumes[:1]
	other.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "f"
	w.update(other)
	w.eventually(w.attachedAndReported("f", "b"), "f")
	w.eventually(w.released("d", "a"), "d")
	w.eventually(w.released("e", "a"), "e")
}

// what cannot be understood at the start keeps nothing else back, and is left alone.
func TestStartWithWhatCannotBeUnderstood(t *testing.T) {
	w := newFixture(t)
	w.node("a", func(n *corev1.Node) {
		n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "nonsense"}, {Name: unique("d"), DevicePath: ""}}
	})
	w.disk("d")
	for name, source := range map[string]storagev1.VolumeAttachmentSource{
		"inline": {}, "lost": {PersistentVolumeName: ptr.To("no-such-volume")},
	} {
		va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
		va.Spec = storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: "a", Source: source}
		va.Status.Attached = true
		require.NoError(t, w.client.Tracker().Add(va))
	}
	w.start()
	w.eventually(func() bool { return !w.reported("d", "a") }, "a volume that no Pod uses is detached")
	w.sync()
	for _, name := range []string{"inline", "lost"} {
		_, err := w.client.StorageV1().VolumeAttachments().Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err, "its owner is unknown")
	}
}

// a controller that starts anew gives the node the whole time again.
func TestUnmountTimerStartsAnewWithTheController(t *testing.T) {
	w := newFixture(t)
	w.node("a")
	w.disk("d")
	w.start()
	w.pod("web", "a", "d")
	w.eventually(w.attachedAndReported("d", "a"), "first")
	w.updateNodeStatus("a", inUse(unique("d")))
	w.updateNodeStatus("a", notReady)
	w.deletePod("web")
	w.sync()
	w.clock.Step(6 * time.Minute)
	w.sync()
	w.stopController()
	w.start()
	w.sync()
	w.clock.Step(6 * time.Minute)
	w.sync()
	require.NotNil(t, w.attachment("d", "a"), "the time is not over")
	w.eventually(func() bool { w.clock.Step(time.Second); return w.attachment("d", "a") == nil }, "now it is")
}

// events that the controller sends itself carry its name.
func TestEventsCarryTheControllersName(t *testing.T) {
	w := newFixture(t)
	w.ownEvents = true
	w.node("a")
	w.disk("d")
	w.start()
	w.pod("web", "a", "d")
	w.eventually(func() bool {
		events, err := w.client.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{})
		return err == nil && len(events.Items) == 1 && events.Items[0].Source.Component == "attachdetach-controller" &&
			events.Items[0].InvolvedObject.Name == "web"
	}, "SuccessfulAttachVolume")
}

// lines is a log that can be read.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(data)
}

// Beside another controller it says at the start for which nodes it works.
func TestControllerForSomeNodesSaysSo(t *testing.T) {
	for _, test := range []struct {
		selector labels.Selector
		says     bool
	}{{labels.SelectorFromSet(labels.Set{"pool": "ours"}), true}, {nil, false}} {
		w, log := newFixture(t), &lines{}
		w.logger = slog.New(slog.NewTextHandler(log, nil))
		w.start(attachdetach.Config{NodeSelector: test.selector})
		w.stopController()
		require.Equal(t, test.says, strings.Contains(log.text.String(), `selector="pool=ours"`), log.text.String())
	}
}

// A node that is taken from the controller is left as it is: its volumes are another's business from then on.
func TestNodeThatIsTakenAway(t *testing.T) {
	w := newFixture(t)
	ours := func(n *corev1.Node) { n.Labels = map[string]string{"pool": "ours"} }
	w.node("a", ours)
	w.disk("d")
	selector := labels.SelectorFromSet(labels.Set{"pool": "ours"})
	w.start(attachdetach.Config{NodeSelector: selector})
	w.pod("web", "a", "d")
	w.eventually(w.attachedAndReported("d", "a"), "first")
	node, err := w.client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	node.Labels = nil
	_, err = w.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	w.node("z", ours)
	w.disk("z")
	w.pod("z", "z", "z")
	w.eventually(w.attachedAndReported("z", "z"), "z")
	w.deletePod("web")
	w.disk("y")
	w.pod("y", "z", "y")
	w.eventually(w.attachedAndReported("y", "z"), "y")
	require.NotNil(t, w.attachment("d", "a"))
	require.True(t, w.reported("d", "a"))
	require.Equal(t, driver, w.attachment("d", "a").Spec.Attacher)
}

// A controller for some nodes that starts after one of them was deleted detaches that node's volumes, and leaves those of others.
func TestNodeThatIsDeletedWhileItsControllerIsDown(t *testing.T) {
	w := newFixture(t)
	ours := func(n *corev1.Node) { n.Labels = map[string]string{"pool": "ours"} }
	w.node("a", ours)
	w.node("z", ours)
	w.disk("d")
	w.disk("e")
	config := attachdetach.Config{NodeSelector: labels.SelectorFromSet(labels.Set{"pool": "ours"})}
	w.start(config)
	w.pod("web", "a", "d")
	w.eventually(w.attachedAndReported("d", "a"), "first")
	w.stopController()
	require.NoError(t, w.client.CoreV1().Nodes().Delete(t.Context(), "a", metav1.DeleteOptions{}))
	w.deletePod("web")
	foreign := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: csi.AttachmentName(driver, "e", "gone"), UID: "foreign"}}
	foreign.Spec = storagev1.VolumeAttachmentSpec{
		Attacher: driver, NodeName: "gone", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("pv-e")},
	}
	foreign.Status.Attached = true
	require.NoError(t, w.client.Tracker().Add(foreign))

	w.start(config)
	w.pod("web2", "z", "d")
	w.eventually(func() bool { w.clock.Step(time.Second); return w.attachedAndReported("d", "z")() }, "the disk must move")
	require.Nil(t, w.attachment("d", "a"))
	require.NotNil(t, w.attachment("e", "gone"), "another controller may own it")
}

// TestTwoControllersWhoseFirstAttachesFail has controllers for different nodes that begin to attach an exclusive volume at the same
// moment, before either knows the other's VolumeAttachment. The attacher answers both with an error.
func TestTwoControllersWhoseFirstAttachesFail(t *testing.T) {
	w := newFixture(t)
	w.disk("d")
	w.withLock(func() { w.attachError = "no slot is free" })
	open := w.holdAttachments()
	defer open()
	nodes := []string{"a", "b"}
	var stops []func()
	for _, node := range nodes {
		w.node(node, func(n *corev1.Node) { n.Labels = map[string]string{"pool": node} })
	}
	for _, node := range nodes {
		w.registry = prometheus.NewRegistry() // each process has its own
		w.start(attachdetach.Config{NodeSelector: labels.SelectorFromSet(labels.Set{"pool": node})})
		stops = append(stops, w.stop)
		w.stop = func() { stops[0](); stops[len(stops)-1]() }
	}
	w.pod("on-a", "a", "d")
	w.pod("on-b", "b", "d")
	for _, node := range nodes {
		w.eventually(func() bool {
			va := w.attachment("d", node)
			return va != nil && va.Status.AttachError != nil
		}, "each controller must have begun, and the attacher have answered")
	}
	open()
	for failed := 0; failed < len(nodes); {
		if strings.Contains(w.nextEvent(), "no slot is free") {
			failed++
		}
	}
	w.attachByHand("d", "a") // the attacher tries again by itself, and the storage lets one node have the volume
	w.eventually(func() bool { w.clock.Step(time.Second); return w.attachedAndReported("d", "a")() }, "the node has it")
	require.False(t, w.reported("d", "b"))

	w.deletePod("on-a")
	w.updateNodeStatus("a", inUse())
	w.eventually(func() bool { w.clock.Step(time.Second); return w.released("d", "a")() }, "no Pod there needs it any more")
	w.attachByHand("d", "b")
	w.eventually(w.attachedAndReported("d", "b"), "then the other node gets it")
}

// attachByHand does what the attacher does when the driver has published the volume.
func (w *fixture) attachByHand(disk, node string) {
	w.t.Helper()
	va := w.attachment(disk, node).DeepCopy()
	va.Status = storagev1.VolumeAttachmentStatus{Attached: true}
	require.NoError(w.t, w.client.Tracker().Update(storagev1.SchemeGroupVersion.WithResource("volumeattachments"), va, ""))
}

// holdAttachments keeps what changes in VolumeAttachments from the controllers that start, until the returned function is called.
func (w *fixture) holdAttachments() (open func()) {
	held := make(chan struct{})
	w.client.PrependWatchReactor("volumeattachments",
		testwatch.CopiesAfter(w.client.Tracker(), func(watch.Event) { <-held }))
	return sync.OnceFunc(func() { close(held) })
}
