package page

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/timeline"
)

// localRecords are those of a recorder of the test.
type localRecords struct{ recorder *timeline.Recorder }

func (r localRecords) Record(_ context.Context, uid types.UID) (timeline.Record, bool, error) {
	record, ok := r.recorder.Record(uid)
	return record, ok, nil
}

func (r localRecords) Latest(_ context.Context, kind string, limit int) ([]timeline.Record, error) {
	return r.recorder.Latest(kind, limit), nil
}

func (r localRecords) Stages(ctx context.Context, _ types.UID, ready func(), _ func(timeline.Change)) error {
	ready()
	<-ctx.Done()
	return nil
}

// html is the whole content of a document.
func html(page *document) string {
	text := ""
	for _, block := range page.Blocks {
		text += block.HTML
	}
	return text
}

func TestTheClusterShowsItsStartAndItsUse(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "home", UID: "n"}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"),
	}}}
	recorder := timeline.New(clock.RealClock{}, 0)
	cluster := timeline.Ref{Kind: timeline.KindCluster, Name: "c", UID: "c"}
	recorder.Begin(cluster, "up", timeline.StageStarting, "etcd").End(nil)
	recorder.Begin(cluster, "up", timeline.StageStarting, "kube-proxy").End(errors.New("no nftables"))
	h, err := newHub(t.Context(), Deps{
		Connect: func() (kubernetes.Interface, error) { return fake.NewClientset(node), nil }, Records: localRecords{recorder}, Clock: clock.RealClock{},
	}, Config{})
	require.NoError(t, err)
	defer h.close()
	now := time.Now()
	page, err := h.clusterPage(t.Context(), now)
	require.NoError(t, err)
	require.Contains(t, html(page), "The start of the cluster")
	require.Contains(t, html(page), "no nftables")
	require.Equal(t, usagePeriod, page.again)
	require.NotContains(t, html(page), "CPU in use", "nothing is known yet")
	// The page that was rendered wants a reading, which this client cannot give. What follows is added after it.
	require.Eventually(t, func() bool { return h.usage.unknown() != "" }, time.Minute, time.Millisecond)

	h.usage.add(now, nil, errors.New("no such API"))
	page, err = h.clusterPage(t.Context(), now)
	require.NoError(t, err)
	require.Contains(t, html(page), "Not seen: no such API")
	h.usage.add(now, []nodeUsage{{Name: "home", CPU: 0.5, Memory: 1 << 30}}, nil)
	h.usage.add(now.Add(usagePeriod), []nodeUsage{{Name: "home", CPU: 1.5, Memory: 2 << 30}}, nil)
	page, err = h.clusterPage(t.Context(), now)
	require.NoError(t, err)
	require.Contains(t, html(page), "CPU of node home: now 1.50 cores of 4.00 cores, between 0.50 cores and 1.50 cores in the last 5s.")
	require.Contains(t, html(page), "Memory of node home: now 2048 MiB of 8192 MiB")
	require.NotContains(t, html(page), "Not seen")
	for range 2 * maxPoints {
		h.usage.add(now, []nodeUsage{{Name: "home"}}, nil)
	}
	require.Len(t, h.usage.points["home"].cpu, maxPoints)
}

func TestUsageIsReadOnlyWhenWanted(t *testing.T) {
	reads, changes := make(chan struct{}, 8), make(chan struct{}, 8)
	u := newUsage(fake.NewClientset())
	u.read = func(context.Context) ([]nodeUsage, error) { reads <- struct{}{}; return nil, nil }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); u.follow(ctx, time.Now, func() { changes <- struct{}{} }) }()
	now := time.Now()
	for range 3 {
		u.want(now) // pages that render at the same time share a reading
	}
	<-reads
	<-changes
	require.Empty(t, reads)
	u.want(now.Add(usagePeriod))
	<-changes
	cancel()
	<-ended
	require.Len(t, reads, 1)
}

// TestANodeCountsAllThatItsPodsRequest has a Pod with a sidecar, and one that requests CPU as a whole.
func TestANodeCountsAllThatItsPodsRequest(t *testing.T) {
	requests := func(cpu string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}
	}
	container := func(cpu string) corev1.Container { return corev1.Container{Resources: requests(cpu)} }
	sidecar := container("100m")
	sidecar.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	h, err := newHub(t.Context(), Deps{
		Connect: func() (kubernetes.Interface, error) {
			return fake.NewClientset(
				&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "home", UID: "n"}},
				&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a", UID: "a"}, Spec: corev1.PodSpec{
					NodeName: "home", InitContainers: []corev1.Container{sidecar}, Containers: []corev1.Container{container("200m")},
				}},
				&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "b", UID: "b"}, Spec: corev1.PodSpec{
					NodeName: "home", Resources: ptr.To(requests("1")), Containers: []corev1.Container{container("200m")},
				}}), nil
		}, Clock: clock.RealClock{},
	}, Config{})
	require.NoError(t, err)
	defer h.close()
	page, err := h.clusterPage(t.Context(), time.Now())
	require.NoError(t, err)
	require.Contains(t, html(page), "1300m requested of 0")
}
