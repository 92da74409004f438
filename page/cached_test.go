package page

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
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
