package config_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/kubelet/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder notes what a source delivers, as "OP name".
type recorder struct {
	mu    sync.Mutex
	seen  []string
	ready int
	last  *corev1.Pod
}

func (r *recorder) HandlePod(c config.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen, r.last = append(r.seen, c.Op.String()+" "+string(c.Pod.UID)), c.Pod
}

func (r *recorder) SourcesReady() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ready = len(r.seen)
	r.seen = append(r.seen, "READY")
}

func (r *recorder) drain() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.seen
	r.seen = nil
	return out
}

func pod(name string, uid types.UID, age time.Duration) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: uid, Generation: 1,
			CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age)),
		},
		Spec: corev1.PodSpec{NodeName: "n"},
	}
}

func newSource(t *testing.T, r *recorder) *config.API {
	a, err := config.NewAPI(config.APIDeps{Client: fake.NewClientset(), Handler: r}, config.APIConfig{NodeName: "n"})
	require.NoError(t, err)
	return a
}

func TestChangesAreTyped(t *testing.T) {
	r := &recorder{}
	a := newSource(t, r)
	require.NoError(t, a.Replace([]any{pod("young", "y", 0), pod("old", "o", time.Hour)}, ""))
	require.Equal(t, []string{"ADD o", "ADD y", "READY"}, r.drain(), "older pods are judged first")

	same := pod("old", "o", time.Hour)
	require.NoError(t, a.Update(same))
	require.Empty(t, r.drain(), "nothing changed")

	same = same.DeepCopy()
	same.Status.Phase = corev1.PodRunning
	require.NoError(t, a.Update(same))
	require.Equal(t, []string{"RECONCILE o"}, r.drain())

	same = same.DeepCopy()
	same.Labels = map[string]string{"a": "b"}
	require.NoError(t, a.Update(same))
	require.Equal(t, []string{"UPDATE o"}, r.drain())

	same = same.DeepCopy()
	deleted := metav1.Now()
	same.DeletionTimestamp = &deleted
	require.NoError(t, a.Update(same))
	require.Equal(t, []string{"DELETE o"}, r.drain())

	require.NoError(t, a.Delete(same))
	require.Equal(t, []string{"REMOVE o"}, r.drain())
}

func TestLocalAnnotations(t *testing.T) {
	r := &recorder{}
	a := newSource(t, r)
	p := pod("p", "u", 0)
	p.Annotations = map[string]string{config.SourceAnnotation: "file", "mine": "1"}
	p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	require.NoError(t, a.Add(p))
	require.Equal(t, config.SourceAPI, r.last.Annotations[config.SourceAnnotation], "no Pod of the API can pretend to be static")
	require.Equal(t, "1", r.last.Annotations["mine"])
	require.Empty(t, r.last.ManagedFields, "not kept for the life of the Pod")
	seen, err := time.Parse(time.RFC3339Nano, r.last.Annotations[config.SeenAnnotation])
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), seen, time.Minute)
	require.Equal(t, "file", p.Annotations[config.SourceAnnotation], "the reflector's object is left alone")
}

func TestVersionsOfAPodShareTheirAnnotations(t *testing.T) {
	r := &recorder{}
	a := newSource(t, r)
	version := func(change string) *corev1.Pod {
		p := pod("p", "u", 0)
		p.Annotations = map[string]string{"note": strings.Repeat("x", 100), "changes": change}
		require.NoError(t, a.Update(p))
		return r.last
	}
	first, second := version("1"), version("2")
	require.Equal(t, "1", first.Annotations["changes"])
	require.Equal(t, "2", second.Annotations["changes"])
	require.Equal(t, first.Annotations["note"], second.Annotations["note"])
	require.Same(t, unsafe.StringData(first.Annotations["note"]), unsafe.StringData(second.Annotations["note"]))
}

func TestNameGivenToANewPod(t *testing.T) {
	r := &recorder{}
	a := newSource(t, r)
	require.NoError(t, a.Replace([]any{pod("p", "one", 0)}, ""))
	r.drain()
	require.NoError(t, a.Replace([]any{pod("p", "two", 0)}, ""))
	require.Equal(t, []string{"REMOVE one", "ADD two"}, r.drain())
	require.NoError(t, a.Update(pod("p", "three", 0)))
	require.Equal(t, []string{"REMOVE two", "ADD three"}, r.drain(), "also if the deletion itself was missed")
}

func TestEmptyFirstListCounts(t *testing.T) {
	r := &recorder{}
	a := newSource(t, r)
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = a.Start(ctx) })
	require.Eventually(t, func() bool { got := r.drain(); return len(got) == 1 && got[0] == "READY" },
		time.Minute, time.Millisecond)
	cancel()
	group.Wait()
}
