package resourcemetrics

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/metrics/pkg/apis/metrics"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

// servers are the kubelets of a test, by node.
type servers map[string]*httptest.Server

// GetConnectionInfo implements kubeletclient.ConnectionInfoGetter.
func (s servers) GetConnectionInfo(_ context.Context, name types.NodeName) (*kubeletclient.ConnectionInfo, error) {
	address, err := url.Parse(s[string(name)].URL)
	if err != nil {
		return nil, err
	}
	return &kubeletclient.ConnectionInfo{
		Scheme: address.Scheme, Hostname: address.Hostname(), Port: address.Port(), Transport: s[string(name)].Client().Transport,
	}, nil
}

// newKubelet serves the summary of a node with two Pods, one of which lacks a container's counters.
func newKubelet(t *testing.T, requests *atomic.Int32) *httptest.Server {
	began := time.Now()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.URL.String() != "/stats/summary?only_cpu_and_memory=true" {
			http.NotFound(w, r)
			return
		}
		now := time.Now()
		cpu := &statsapi.CPUStats{Time: metav1.NewTime(now), UsageCoreNanoSeconds: ptr.To(uint64(now.Sub(began) / 4))}
		memory := &statsapi.MemoryStats{Time: metav1.NewTime(now), WorkingSetBytes: ptr.To(uint64(3 << 20))}
		pod := func(name string, containers ...statsapi.ContainerStats) statsapi.PodStats {
			return statsapi.PodStats{PodRef: statsapi.PodReference{Name: name, Namespace: "ns", UID: "uid-" + name}, Containers: containers}
		}
		main := statsapi.ContainerStats{Name: "main", StartTime: metav1.NewTime(began), CPU: cpu, Memory: memory}
		_ = json.NewEncoder(w).Encode(statsapi.Summary{
			Node: statsapi.NodeStats{CPU: cpu, Memory: memory},
			Pods: []statsapi.PodStats{pod("a", main), pod("b", main, statsapi.ContainerStats{Name: "starting"})},
		})
	}))
	t.Cleanup(server.Close)
	return server
}

func newNode(name string, ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{"name": name}}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}},
	}}
}

func newPod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name), Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

func newStorage(t *testing.T, kubelets servers, objects ...runtime.Object) (*nodeStorage, *podStorage) {
	factory := informers.NewSharedInformerFactory(fake.NewClientset(objects...), 0)
	nodes, pods := factory.Core().V1().Nodes().Lister(), factory.Core().V1().Pods().Lister()
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	shared := newKubelets(kubelets, clock.RealClock{})
	return &nodeStorage{nodes: nodes, kubelets: shared}, &podStorage{pods: pods, nodes: nodes, kubelets: shared}
}

func TestMetricsOfNodesAndPods(t *testing.T) {
	var requests atomic.Int32
	nodes, pods := newStorage(t, servers{"n1": newKubelet(t, &requests)},
		newNode("n1", corev1.ConditionTrue), newNode("down", corev1.ConditionUnknown), newPod("a", "n1"), newPod("b", "n1"), newPod("lost", "down"), newPod("new", ""))
	require.Zero(t, requests.Load(), "nothing is read without a request")

	object, err := nodes.List(t.Context(), &metainternalversion.ListOptions{})
	require.NoError(t, err)
	list := object.(*metrics.NodeMetricsList)
	require.Len(t, list.Items, 1, "a node that is not Ready has none")
	require.Equal(t, "n1", list.Items[0].Name)
	require.Equal(t, "n1", list.Items[0].Labels["name"])
	require.InDelta(t, 0.25, list.Items[0].Usage.Cpu().AsApproximateFloat64(), 0.01)
	require.Equal(t, "3Mi", list.Items[0].Usage.Memory().String())
	require.EqualValues(t, 2, requests.Load())

	ctx := genericapirequest.WithNamespace(t.Context(), "ns")
	object, err = pods.List(ctx, &metainternalversion.ListOptions{})
	require.NoError(t, err)
	all := object.(*metrics.PodMetricsList)
	require.Len(t, all.Items, 1, "a Pod whose containers do not all run has none")
	require.Equal(t, "a", all.Items[0].Name)
	require.Len(t, all.Items[0].Containers, 1)
	require.InDelta(t, 0.25, all.Items[0].Containers[0].Usage.Cpu().AsApproximateFloat64(), 0.01)
	require.LessOrEqual(t, requests.Load(), int32(3), "a request shares the readings of those before")

	for name, options := range map[string]*metainternalversion.ListOptions{
		"labels": {LabelSelector: labels.SelectorFromSet(labels.Set{"app": "b"})},
		"fields": {FieldSelector: fields.OneTermEqualSelector("metadata.name", "b")},
	} {
		object, err = pods.List(ctx, options)
		require.NoError(t, err, name)
		require.Empty(t, object.(*metrics.PodMetricsList).Items, name)
	}
	table, err := table{}.ConvertToTable(ctx, all, nil)
	require.NoError(t, err)
	require.Len(t, table.Rows, 1)
	require.Equal(t, "a", table.Rows[0].Cells[0])
}

func TestMissingMetricsSayWhy(t *testing.T) {
	var requests atomic.Int32
	replaced := newPod("a", "n1")
	replaced.UID = "of a Pod that has the name now"
	broken := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no such right", http.StatusForbidden) }))
	defer broken.Close()
	nodes, pods := newStorage(t, servers{"n1": newKubelet(t, &requests), "broken": broken}, newNode("n1", corev1.ConditionTrue),
		newNode("down", corev1.ConditionUnknown), newNode("broken", corev1.ConditionTrue), replaced, newPod("new", ""), newPod("lost", "down"))
	ctx := genericapirequest.WithNamespace(t.Context(), "ns")
	for name, want := range map[string]string{
		"a": "have only started", "new": "not scheduled", "lost": `node "down" is not Ready`, "none": "not found",
	} {
		_, err := pods.Get(ctx, name, nil)
		require.True(t, apierrors.IsNotFound(err), name)
		require.ErrorContains(t, err, want, name)
	}
	for name, want := range map[string]string{"broken": "403 Forbidden: no such right", "down": "not Ready", "none": "not found"} {
		_, err := nodes.Get(ctx, name, nil)
		require.True(t, apierrors.IsNotFound(err), name)
		require.ErrorContains(t, err, want, name)
	}
}
