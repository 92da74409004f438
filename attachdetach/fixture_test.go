package attachdetach_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/attachdetach"
	"github.com/berth-dev/berth/attachdetach/csi"
	"github.com/berth-dev/berth/internal/testleak"
	"github.com/berth-dev/berth/internal/testwatch"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

func TestMain(m *testing.M) { testleak.Verify(m) }

const (
	driver       = "disk.example.com"
	testTimeout  = time.Minute
	pollInterval = 2 * time.Millisecond
	managed      = "volumes.kubernetes.io/controller-managed-attach-detach"
)

// fixture is an API server in memory with an attacher, and a controller that can be started again.
type fixture struct {
	t        *testing.T
	client   *fake.Clientset
	clock    *testclock.FakeClock
	events   *record.FakeRecorder
	timeline *timeline.Recorder
	registry *prometheus.Registry
	stop     func()

	ownEvents bool         // the controller sends events itself
	logger    *slog.Logger // of the next controller; may be nil

	claimChanged func(namespace, name string) // of the next controller; may be nil

	mu              sync.Mutex // guards the attacher's settings below
	attachError     string     // the attachError that it answers with
	attacherStopped bool       // it does nothing
	patches         map[string]int
	uid             int
	attached        map[string]bool // by attachment name, what the storage has
}

func newFixture(t *testing.T) *fixture {
	w := &fixture{
		t: t, client: fake.NewClientset(), clock: testclock.NewFakeClock(time.Now()), events: record.NewFakeRecorder(10000),
		registry: prometheus.NewRegistry(), patches: make(map[string]int), attached: make(map[string]bool),
	}
	w.timeline = timeline.New(w.clock, 0)
	w.client.PrependReactor("create", "volumeattachments", func(action clienttesting.Action) (bool, runtime.Object, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.uid++
		va := action.(clienttesting.CreateAction).GetObject().(*storagev1.VolumeAttachment)
		va.UID = types.UID(fmt.Sprint("va-", w.uid))
		va.Finalizers = []string{"external-attacher/" + driver}
		return false, nil, nil
	})
	w.client.PrependReactor("delete", "volumeattachments", w.deleteAttachment)
	w.client.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		require.Equal(t, "status", action.GetSubresource())
		w.patches[action.(clienttesting.PatchAction).GetName()]++
		// Under the lock, for the tracker reads and writes in two steps: a change between them would be lost.
		return clienttesting.ObjectReaction(w.client.Tracker())(action)
	})
	w.client.PrependWatchReactor("*", testwatch.Copies(w.client.Tracker())) // informers change what they get
	w.attacher()
	t.Cleanup(func() { w.stopController() })
	return w
}

// deleteAttachment does what finalizers do: the object gets a deletion time and the attacher removes it.
func (w *fixture) deleteAttachment(action clienttesting.Action) (bool, runtime.Object, error) {
	name := action.(clienttesting.DeleteAction).GetName()
	obj, err := w.client.Tracker().Get(action.GetResource(), "", name)
	if err != nil {
		return true, nil, err
	}
	va := obj.(*storagev1.VolumeAttachment).DeepCopy()
	if va.DeletionTimestamp == nil {
		now := metav1.Now()
		va.DeletionTimestamp = &now
		if err := w.client.Tracker().Update(action.GetResource(), va, ""); err != nil {
			return true, nil, err
		}
	}
	return true, nil, nil
}

// attacher is what the driver's attacher does: it answers each VolumeAttachment.
func (w *fixture) attacher() {
	watcher, err := w.client.StorageV1().VolumeAttachments().Watch(context.Background(), metav1.ListOptions{})
	require.NoError(w.t, err)
	var running sync.WaitGroup
	running.Go(func() {
		for event := range watcher.ResultChan() {
			if va, ok := event.Object.(*storagev1.VolumeAttachment); ok && event.Type != watch.Deleted {
				w.runAttacherOn(va.DeepCopy())
			}
		}
	})
	w.t.Cleanup(func() { watcher.Stop(); running.Wait() })
}

func (w *fixture) runAttacherOn(va *storagev1.VolumeAttachment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	resource := storagev1.SchemeGroupVersion.WithResource("volumeattachments")
	switch {
	case w.attacherStopped:
	case va.DeletionTimestamp != nil:
		delete(w.attached, va.Name)
		_ = w.client.Tracker().Delete(resource, "", va.Name)
	case w.attachError != "" && va.Status.AttachError == nil:
		va.Status.AttachError = &storagev1.VolumeError{Time: metav1.Now(), Message: w.attachError}
		_ = w.client.Tracker().Update(resource, va, "")
	case w.attachError == "" && !va.Status.Attached:
		w.attached[va.Name] = true
		va.Status = storagev1.VolumeAttachmentStatus{Attached: true}
		_ = w.client.Tracker().Update(resource, va, "")
	}
}

func (w *fixture) withLock(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// start runs a controller, and waits until it is ready.
func (w *fixture) start(configs ...attachdetach.Config) {
	var config attachdetach.Config
	for _, c := range configs {
		config = c
	}
	deps := attachdetach.Deps{
		Client: w.client, Timeline: w.timeline, Recorder: w.events, Clock: w.clock, Registerer: w.registry, Logger: w.logger,
	}
	deps.OnClaimChanged = w.claimChanged
	if w.ownEvents {
		deps.Recorder = nil
	}
	c, err := attachdetach.New(deps, config)
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Start(ctx) }()
	w.stop = func() { cancel(); require.NoError(w.t, <-done) }
	w.eventually(func() bool { return c.Ready() == nil }, "the controller must become ready")
}

func (w *fixture) stopController() {
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
}

func (w *fixture) eventually(f func() bool, what string) {
	w.t.Helper()
	require.Eventually(w.t, f, testTimeout, pollInterval, what)
}

func (w *fixture) node(name string, change ...func(*corev1.Node)) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(name + "-uid"), Annotations: map[string]string{managed: "true"},
	}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, f := range change {
		f(node)
	}
	_, err := w.client.CoreV1().Nodes().Create(context.Background(), node, metav1.CreateOptions{})
	require.NoError(w.t, err)
}

// updateNodeStatus changes a node as its kubelet, or an operator, does.
func (w *fixture) updateNodeStatus(name string, change func(*corev1.Node)) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	// By the tracker: the client has a lock of its own, under which it calls the reactors, and these wait for this one.
	resource := corev1.SchemeGroupVersion.WithResource("nodes")
	obj, err := w.client.Tracker().Get(resource, "", name)
	require.NoError(w.t, err)
	node := obj.(*corev1.Node).DeepCopy()
	change(node)
	require.NoError(w.t, w.client.Tracker().Update(resource, node, ""))
}

func inUse(names ...corev1.UniqueVolumeName) func(*corev1.Node) {
	return func(node *corev1.Node) { node.Status.VolumesInUse = names }
}

func notReady(node *corev1.Node) { node.Status.Conditions[0].Status = corev1.ConditionUnknown }

// disk makes a claim and its PersistentVolume, bound to each other.
func (w *fixture) disk(name string, modes ...corev1.PersistentVolumeAccessMode) {
	if len(modes) == 0 {
		modes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: name, UID: types.UID(name + "-claim"),
	}}
	claim.Spec.VolumeName, claim.Status.Phase = "pv-"+name, corev1.ClaimBound
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}}
	pv.Spec.AccessModes = modes
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: name, UID: claim.UID}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name}
	_, err := w.client.CoreV1().PersistentVolumeClaims("default").Create(context.Background(), claim, metav1.CreateOptions{})
	require.NoError(w.t, err)
	_, err = w.client.CoreV1().PersistentVolumes().Create(context.Background(), pv, metav1.CreateOptions{})
	require.NoError(w.t, err)
}

func unique(disk string) corev1.UniqueVolumeName {
	return operationexecutor.UniqueVolumeName(csi.PluginName, csi.VolumeName(driver, disk))
}

func (w *fixture) pod(name, node string, claims ...string) *corev1.Pod {
	w.withLock(func() { w.uid++ })
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: name,
	}}
	w.withLock(func() { pod.UID = types.UID(fmt.Sprint(name, "-uid-", w.uid)) })
	pod.Spec.NodeName = node
	for _, claim := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
	_, err := w.client.CoreV1().Pods("default").Create(context.Background(), pod, metav1.CreateOptions{})
	require.NoError(w.t, err)
	return pod
}

func (w *fixture) deletePod(name string) {
	require.NoError(w.t, w.client.CoreV1().Pods("default").Delete(context.Background(), name, metav1.DeleteOptions{}))
}

// attachment is the VolumeAttachment of the disk on the node, nil if there is none.
func (w *fixture) attachment(disk, node string) *storagev1.VolumeAttachment {
	va, err := w.client.StorageV1().VolumeAttachments().Get(context.Background(),
		csi.AttachmentName(driver, disk, types.NodeName(node)), metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return va
}

// reported says whether the node's status lists the disk.
func (w *fixture) reported(disk, node string) bool {
	n, err := w.client.CoreV1().Nodes().Get(context.Background(), node, metav1.GetOptions{})
	if err != nil {
		return false
	}
	for _, attached := range n.Status.VolumesAttached {
		if attached.Name == unique(disk) {
			return true
		}
	}
	return false
}

func (w *fixture) attachedAndReported(disk, node string) func() bool {
	return func() bool {
		va := w.attachment(disk, node)
		return va != nil && va.Status.Attached && w.reported(disk, node)
	}
}

func (w *fixture) released(disk, node string) func() bool {
	return func() bool { return w.attachment(disk, node) == nil && !w.reported(disk, node) }
}

// nextEvent waits for an event that has the text in it.
func (w *fixture) nextEvent() string {
	w.t.Helper()
	select {
	case text := <-w.events.Events:
		return text
	case <-time.After(testTimeout):
		w.t.Fatal("no event came")
		return ""
	}
}

// stepUntilEvent steps the clock until the next event, which must have the text.
func (w *fixture) stepUntilEvent(text string) {
	w.t.Helper()
	w.eventually(func() bool {
		w.clock.Step(time.Second)
		return len(w.events.Events) > 0
	}, "no event came")
	require.Contains(w.t, <-w.events.Events, text)
}

// metric is the value of the metric that has a label with the value; 0 if there is none.
func (w *fixture) metric(name, label string) float64 {
	families, err := w.registry.Gather()
	require.NoError(w.t, err)
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, pair := range metric.GetLabel() {
				if pair.GetValue() == label {
					return metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
				}
			}
		}
	}
	return 0
}
