//go:build integration

package integration

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// TestClaimsAreNotWaitedForBySeconds shows that no poll stands between a new claim being bound and its Pod being
// given to a node. Upstream's scheduler looks after one second at the earliest, so a single Pod that is bound sooner
// proves it; of several the fastest is taken, because a busy machine has slow moments of its own.
func TestClaimsAreNotWaitedForBySeconds(t *testing.T) {
	c := newCluster(t, 167)
	c.up("--unsafe-no-fsync")
	client := c.client()
	var times []time.Duration
	for i := range 8 {
		times = append(times, scheduleStateful(t, client, fmt.Sprintf("stateful-%d", i)))
		if slices.Min(times) < time.Second {
			break
		}
	}
	t.Logf("created to bound to a node: %v", times)
	require.Less(t, slices.Min(times), time.Second)
	c.stop()
	require.Empty(t, c.leftovers())
}

// scheduleStateful creates a Pod with a claim of its own and returns how long it took until it was given to a node.
func scheduleStateful(t *testing.T, client kubernetes.Interface, name string) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	pods := client.CoreV1().Pods("default")
	watcher, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	require.NoError(t, err)
	defer watcher.Stop()
	began := time.Now()
	_, err = client.CoreV1().PersistentVolumeClaims("default").Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To("berth-local"),
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")},
			},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			Containers:                    []corev1.Container{{Name: "main", Image: "berth.local/pause:v1"}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	for event := range watcher.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		require.True(t, ok, "the watch of pod %s broke: %v", name, event.Object)
		if pod.Spec.NodeName != "" {
			return time.Since(began)
		}
	}
	t.Fatalf("pod %s was not given to a node", name)
	return 0
}
