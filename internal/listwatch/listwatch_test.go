package listwatch_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/listwatch"
)

func TestListsAndWatches(t *testing.T) {
	client := fake.NewClientset(pod("a", "demo"), pod("b", "other"))
	api := client.CoreV1().Pods("ns")
	demo := func(options *metav1.ListOptions) { options.LabelSelector = "app=demo" }
	for _, test := range []struct {
		source cache.ListerWatcher
		names  []string
	}{
		{listwatch.New(api, client), []string{"a", "b"}},
		{listwatch.Select(api, client, demo), []string{"a"}},
	} {
		list, err := cache.ToListerWatcherWithContext(test.source).ListWithContext(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		var names []string
		for _, pod := range list.(*corev1.PodList).Items {
			names = append(names, pod.Name)
		}
		require.Equal(t, test.names, names)
	}
	changes, err := cache.ToListerWatcherWithContext(listwatch.New(api, client)).WatchWithContext(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	defer changes.Stop()
	_, err = api.Create(t.Context(), pod("c", "demo"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, watch.Added, (<-changes.ResultChan()).Type)
}

func pod(name, app string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"app": app}}}
}
