//go:build integration

package replicaset_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/replicaset"
	"github.com/berth-dev/berth/test/apiserver"
)

// liveTimeout bounds every wait, with time to spare for a loaded machine.
const liveTimeout = 3 * time.Minute

// TestLive runs the controller against a real API server, with no more rights than a cluster gives it. There are no
// nodes, so the Pods stay unscheduled.
func TestLive(t *testing.T) {
	server := apiserver.Start(t)
	admin, own := server.Client(t, apiserver.Admin), server.Client(t, "replicaset")
	ctx, cancel := context.WithCancel(t.Context())
	c, err := replicaset.New(replicaset.Deps{Client: own}, replicaset.Config{})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- c.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	ns := fmt.Sprintf("live-%d", time.Now().UnixNano())
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}
	_, err = admin.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = admin.CoreV1().Namespaces().Delete(context.Background(), ns, metav1.DeleteOptions{}) })
	_, err = admin.CoreV1().ResourceQuotas(ns).Create(ctx, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "pods"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("120")}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { // the quota counts only once its controller has seen it
		quota, err := admin.CoreV1().ResourceQuotas(ns).Get(ctx, "pods", metav1.GetOptions{})
		return err == nil && len(quota.Status.Hard) > 0
	}, liveTimeout, 50*time.Millisecond)

	began := time.Now()
	rs := newSet("web", 100)
	rs.Namespace = ns
	_, err = admin.AppsV1().ReplicaSets(ns).Create(ctx, rs, metav1.CreateOptions{})
	require.NoError(t, err)
	waitStable := func(what string, replicas int32, failing bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			rs, err := admin.AppsV1().ReplicaSets(ns).Get(ctx, "web", metav1.GetOptions{})
			if err != nil || rs.Status.Replicas != replicas || rs.Status.ObservedGeneration != rs.Generation ||
				(len(rs.Status.Conditions) > 0) != failing {
				return false
			}
			// The status may be that of before a Pod came which the controller did not make.
			pods, err := admin.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
			return err == nil && len(pods.Items) == int(replicas)
		}, liveTimeout, 20*time.Millisecond, what)
		t.Logf("%s: %d pods after %v", what, replicas, time.Since(began).Round(time.Millisecond))
	}
	resize := func(replicas int32) {
		t.Helper()
		began = time.Now()
		// An update could conflict with a status that the controller writes at the same time.
		patch := fmt.Appendf(nil, `{"spec": {"replicas": %d}}`, replicas)
		_, err := admin.AppsV1().ReplicaSets(ns).Patch(ctx, "web", types.MergePatchType, patch, metav1.PatchOptions{}, "scale")
		require.NoError(t, err)
	}
	waitStable("created", 100, false)
	resize(150)
	waitStable("refused by the quota", 120, true)
	resize(7)
	waitStable("scaled down", 7, false)
	stray := (&corev1.Pod{ObjectMeta: rs.Spec.Template.ObjectMeta, Spec: rs.Spec.Template.Spec}).DeepCopy()
	stray.Name = "stray"
	began = time.Now()
	_, err = admin.CoreV1().Pods(ns).Create(ctx, stray, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { // adopted, or adopted and deleted as one too many
		pod, err := admin.CoreV1().Pods(ns).Get(ctx, "stray", metav1.GetOptions{})
		return apierrors.IsNotFound(err) || (err == nil && metav1.GetControllerOf(pod) != nil)
	}, liveTimeout, 20*time.Millisecond)
	waitStable("adopted and trimmed", 7, false)
	resize(0)
	waitStable("emptied", 0, false)
}
