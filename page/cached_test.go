package page

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

func TestTheCacheSelectsPodsByTheirNode(t *testing.T) {
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for name, node := range map[string]string{"here": "home", "there": "other", "nowhere": ""} {
		require.NoError(t, store.Add(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: node},
		}))
	}
	pods := cachedPods{fake.NewClientset().CoreV1().Pods(metav1.NamespaceAll), store, metav1.NamespaceAll}
	all, err := pods.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, all.Items, 3)
	here, err := pods.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=home"})
	require.NoError(t, err)
	require.Len(t, here.Items, 1)
	require.Equal(t, "here", here.Items[0].Name)
	direct, err := pods.List(t.Context(), metav1.ListOptions{FieldSelector: "status.phase=Running"})
	require.NoError(t, err)
	require.Empty(t, direct.Items, "the API server knows the other fields")
}

// TestAPageOfANamespaceReadsTheOthersDirectly: explanations need objects of other namespaces, such as the Service of the cluster's DNS.
func TestAPageOfANamespaceReadsTheOthersDirectly(t *testing.T) {
	dns := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kube-dns"}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "home", UID: "n"}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{}}}
	objects := []runtime.Object{dns, node}
	for _, namespace := range []string{"shop", "other"} {
		objects = append(objects, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web", UID: types.UID(namespace)}, Spec: corev1.PodSpec{NodeName: "home"},
		})
	}
	h, err := newHub(t.Context(), Deps{
		Connect: func() (kubernetes.Interface, error) { return fake.NewClientset(objects...), nil }, Clock: clock.RealClock{},
	}, Config{Namespace: "shop"})
	require.NoError(t, err)
	defer h.close()
	core := h.source.Client.CoreV1()
	_, err = core.Services(metav1.NamespaceSystem).Get(t.Context(), "kube-dns", metav1.GetOptions{})
	require.NoError(t, err)
	all, err := core.Pods(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, all.Items, 2)
	require.IsType(t, cachedPods{}, core.Pods("shop"))
	_, err = h.objectPage(t.Context(), view{name: "object", kind: "Pod", namespace: "other", what: "web"}, h.source.Clock.Now(), nil)
	require.True(t, isNotFound(err), "%v", err)
	page, err := h.clusterPage(t.Context(), h.source.Clock.Now())
	require.NoError(t, err)
	require.Contains(t, html(page), "1 in namespace shop of 0", "what the page counts is not all that the node runs")
}
