package mirror_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/mirror"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// writer notes the phases that are to be written, by UID.
type writer struct {
	mu     sync.Mutex
	phases map[types.UID]corev1.PodPhase
	before func(pod *corev1.Pod) // called by Set; may be nil
}

func (w *writer) Set(pod *corev1.Pod, status corev1.PodStatus) bool {
	if w.before != nil {
		w.before(pod)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	changed := w.phases[pod.UID] != status.Phase
	w.phases[pod.UID] = status.Phase
	return changed
}

func (w *writer) phase(uid types.UID) corev1.PodPhase {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.phases[uid]
}

func (w *writer) Get(uid types.UID) (corev1.PodStatus, bool) {
	phase := w.phase(uid)
	return corev1.PodStatus{Phase: phase}, phase != ""
}
func (*writer) Observe(*corev1.Pod) {}
func (*writer) Finish(*corev1.Pod)  {}
func (w *writer) Forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.phases, uid)
}

func static(uid types.UID, image string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "p-n", UID: uid,
			Annotations: map[string]string{config.SourceAnnotation: config.SourceFile, config.HashAnnotation: string(uid)},
		},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: image}}},
	}
}

// fixture is a Manager and the API server that it keeps mirrors in.
type fixture struct {
	*mirror.Manager
	t          *testing.T
	client     *fake.Clientset
	writer     *writer
	registered chan struct{}
}

func newFixture(t *testing.T) *fixture {
	w := &fixture{
		t: t, client: fake.NewClientset(), writer: &writer{phases: map[types.UID]corev1.PodPhase{}},
		registered: make(chan struct{}),
	}
	var err error
	w.Manager, err = mirror.New(mirror.Deps{
		Client: w.client, Writer: w.writer, Registered: w.registered,
		Node: func() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "node-uid"}} },
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { _ = w.Start(ctx) })
	t.Cleanup(func() { cancel(); group.Wait() })
	return w
}

// waitMirror waits for a mirror that satisfies the condition, gives it a UID as the API server would, and shows it.
func (w *fixture) waitMirror(uid types.UID, ok func(*corev1.Pod) bool) *corev1.Pod {
	w.t.Helper()
	var found *corev1.Pod
	require.Eventually(w.t, func() bool {
		pod, err := w.client.CoreV1().Pods("ns").Get(context.Background(), "p-n", metav1.GetOptions{})
		if err != nil || !ok(pod) {
			return false
		}
		found = pod
		return true
	}, time.Minute, time.Millisecond)
	found = found.DeepCopy()
	found.UID = uid
	found, err := w.client.CoreV1().Pods("ns").Update(context.Background(), found, metav1.UpdateOptions{})
	require.NoError(w.t, err)
	w.HandleMirror(config.Change{Op: config.Add, Pod: found})
	return found
}

func (w *fixture) waitDeleted() {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		_, err := w.client.CoreV1().Pods("ns").Get(context.Background(), "p-n", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, time.Minute, time.Millisecond)
}

func hash(want string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return p.Annotations[mirror.Annotation] == want }
}

func TestLifeOfAMirror(t *testing.T) {
	w := newFixture(t)
	pod := static("one", "i")
	w.HandleStatic(config.Change{Op: config.Add, Pod: pod})
	require.True(t, w.Set(pod, corev1.PodStatus{Phase: corev1.PodRunning}))
	require.False(t, w.Set(pod, corev1.PodStatus{Phase: corev1.PodRunning}))
	require.Empty(t, w.client.Actions(), "nothing before the node is registered")

	close(w.registered)
	m := w.waitMirror("m1", hash("one"))
	require.Equal(t, []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "Node", Name: "n", UID: "node-uid", Controller: m.OwnerReferences[0].Controller,
	}}, m.OwnerReferences)
	require.True(t, *m.OwnerReferences[0].Controller)
	require.Eventually(t, func() bool { return w.writer.phase("m1") == corev1.PodRunning }, time.Minute, time.Millisecond)
	require.Empty(t, w.writer.phase("one"), "statuses go to the mirror")
	require.EqualValues(t, "one", w.StaticUID("m1"))
	require.EqualValues(t, "other", w.StaticUID("other"))

	// A user deletes it: there is another one.
	require.NoError(t, w.client.CoreV1().Pods("ns").Delete(t.Context(), "p-n", metav1.DeleteOptions{}))
	w.HandleMirror(config.Change{Op: config.Remove, Pod: m})
	m = w.waitMirror("m2", hash("one"))

	// A user edits it: it is replaced.
	edited := m.DeepCopy()
	edited.Spec.Containers[0].Image = "other"
	w.HandleMirror(config.Change{Op: config.Update, Pod: edited})
	w.waitDeleted()
	w.HandleMirror(config.Change{Op: config.Remove, Pod: edited})
	m = w.waitMirror("m3", hash("one"))

	// The file is removed: the mirror stays until nothing of the Pod is left.
	w.HandleStatic(config.Change{Op: config.Delete, Pod: pod})
	w.HandleStatic(config.Change{Op: config.Remove, Pod: pod})
	require.Len(t, w.Mirrors(), 1)
	w.SourcesReady()
	_, err := w.client.CoreV1().Pods("ns").Get(t.Context(), "p-n", metav1.GetOptions{})
	require.NoError(t, err)
	w.Forget("one")
	w.waitDeleted()
	w.HandleMirror(config.Change{Op: config.Remove, Pod: m})
	require.Empty(t, w.Mirrors())
}

// TestStatusOfAMirrorThatIsRemoved removes a mirror at the moment when its status is set.
func TestStatusOfAMirrorThatIsRemoved(t *testing.T) {
	w := newFixture(t)
	w.writer.before = func(pod *corev1.Pod) {
		if pod.UID == "m1" {
			_ = w.client.CoreV1().Pods("ns").Delete(context.Background(), "p-n", metav1.DeleteOptions{})
			w.HandleMirror(config.Change{Op: config.Remove, Pod: pod})
		}
	}
	pod := static("one", "i")
	w.HandleStatic(config.Change{Op: config.Add, Pod: pod})
	require.True(t, w.Set(pod, corev1.PodStatus{Phase: corev1.PodRunning}))
	close(w.registered)
	w.waitMirror("m1", hash("one"))
	w.waitMirror("m2", func(p *corev1.Pod) bool { return p.UID != "m1" })
	require.Eventually(t, func() bool { return w.writer.phase("m2") == corev1.PodRunning }, time.Minute, time.Millisecond)
	require.Empty(t, w.writer.phase("m1"))
}

func TestReplacedStaticPod(t *testing.T) {
	w := newFixture(t)
	close(w.registered)
	w.HandleStatic(config.Change{Op: config.Add, Pod: static("one", "i")})
	m := w.waitMirror("m1", hash("one"))
	w.Forget("one")
	w.HandleStatic(config.Change{Op: config.Add, Pod: static("two", "i")})
	w.waitDeleted()
	w.HandleMirror(config.Change{Op: config.Remove, Pod: m})
	w.waitMirror("m2", hash("two"))
}

func TestOrphanedMirror(t *testing.T) {
	w := newFixture(t)
	close(w.registered)
	orphan := static("gone", "i")
	orphan.Annotations = map[string]string{mirror.Annotation: "gone", config.SourceAnnotation: config.SourceAPI}
	require.True(t, podutil.IsMirror(orphan))
	require.NoError(t, w.client.Tracker().Add(orphan))
	w.HandleMirror(config.Change{Op: config.Add, Pod: orphan})
	w.SourcesReady()
	w.waitDeleted()
}

// What an earlier process has said of a static Pod is in its mirror Pod, which may come after the Pod.
func TestPreviousStatusIsThatOfTheMirror(t *testing.T) {
	var known []types.UID
	m, err := mirror.New(mirror.Deps{
		Client: fake.NewClientset(), Writer: &writer{phases: map[types.UID]corev1.PodPhase{}}, Registered: make(chan struct{}),
		Node: func() *corev1.Node { return nil }, OnPrevious: func(uid types.UID) { known = append(known, uid) },
	})
	require.NoError(t, err)
	first, second := static("first", "app:1"), static("second", "app:1")
	second.Name = "q-n"
	for _, pod := range []*corev1.Pod{first, second} {
		m.HandleStatic(config.Change{Op: config.Add, Pod: pod})
		_, ok := m.Previous(pod)
		require.False(t, ok)
	}

	shown := first.DeepCopy()
	shown.UID, shown.Annotations = "mirror", map[string]string{mirror.Annotation: "first"}
	shown.Status.Phase = corev1.PodRunning
	m.HandleMirror(config.Change{Op: config.Add, Pod: shown})
	m.HandleMirror(config.Change{Op: config.Reconcile, Pod: shown})
	require.Equal(t, []types.UID{"first"}, known, "once")
	previous, ok := m.Previous(first)
	require.True(t, ok)
	require.Equal(t, corev1.PodRunning, previous.Phase)

	m.SourcesReady()
	require.Equal(t, []types.UID{"first", "second"}, known)
	previous, ok = m.Previous(second)
	require.True(t, ok, "the API server has delivered its Pods and has no mirror Pod")
	require.Empty(t, previous)
	previous, ok = m.Previous(shown)
	require.True(t, ok)
	require.Equal(t, corev1.PodRunning, previous.Phase, "the status of any other Pod is its own")
}

func TestWithoutAPIServer(t *testing.T) {
	var reported []corev1.PodPhase
	m, err := mirror.New(mirror.Deps{OnStatus: func(_ *corev1.Pod, s corev1.PodStatus) { reported = append(reported, s.Phase) }})
	require.NoError(t, err)
	pod := static("one", "i")
	require.True(t, m.Set(pod, corev1.PodStatus{Phase: corev1.PodRunning}))
	got, ok := m.Get("one")
	require.True(t, ok)
	require.Equal(t, corev1.PodRunning, got.Phase)
	m.Observe(pod)
	m.Finish(pod)
	m.Forget("one")
	_, ok = m.Get("one")
	require.False(t, ok)
	require.Equal(t, []corev1.PodPhase{corev1.PodRunning}, reported)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, m.Start(ctx))
}
