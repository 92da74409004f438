package replicaset_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/testlog"
	"github.com/berth-dev/berth/replicaset"
)

const ns = "default"

func newSet(name string, replicas int32) *appsv1.ReplicaSet {
	match := map[string]string{"app": name}
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Generation: 1},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: match},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: match, Annotations: map[string]string{"note": "kept"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "image"}}},
			},
		},
	}
}

// start runs a controller in the bubble until the test ends or the returned function is called.
func start(t *testing.T, a *fakeServer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c, err := replicaset.New(replicaset.Deps{Client: a.client, Recorder: &record.FakeRecorder{}, Logger: testlog.New(t, slog.DiscardHandler)}, replicaset.Config{})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- c.Start(ctx) }()
	synctest.Wait()
	require.NoError(t, c.Ready())
	require.NoError(t, c.Healthy())
	require.ErrorContains(t, c.Start(ctx), "was started before")
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
		require.Error(t, c.Ready())
	})
	t.Cleanup(stop)
	return stop
}

// reconciliation plays a test with one ReplicaSet "web" and a controller, in a bubble of its own time.
func reconciliation(t *testing.T, replicas int32, test func(t *testing.T, a *fakeServer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := newFakeServer()
		a.put(replicasets, newSet("web", replicas))
		start(t, a)
		test(t, a)
	})
}

// web are the Pods of "web" that count.
func web(a *fakeServer) []*corev1.Pod {
	var live []*corev1.Pod
	for _, pod := range a.podsOf(a.replicaSet(ns, "web").UID) {
		if pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodFailed {
			live = append(live, pod)
		}
	}
	return live
}

func scale(a *fakeServer, name string, replicas int32) {
	change(a, replicasets, ns, name, func(rs *appsv1.ReplicaSet) {
		rs.Spec.Replicas = &replicas
		rs.Generation++
	})
}

// ready makes a Pod run on a node and be ready from now on.
func ready(a *fakeServer, pod *corev1.Pod, node string) {
	change(a, pods, pod.Namespace, pod.Name, func(pod *corev1.Pod) {
		pod.Spec.NodeName = node
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
		}}
	})
}

func TestCreatesPodsFromTheTemplate(t *testing.T) {
	reconciliation(t, 3, func(t *testing.T, a *fakeServer) {
		rs, made := a.replicaSet(ns, "web"), web(a)
		require.Len(t, made, 3)
		for _, pod := range made {
			require.True(t, strings.HasPrefix(pod.Name, "web-"), pod.Name)
			require.Len(t, pod.Name, len("web-")+5)
			require.Equal(t, "web-", pod.GenerateName)
			require.Equal(t, rs.Spec.Template.Labels, pod.Labels)
			require.Equal(t, rs.Spec.Template.Annotations, pod.Annotations)
			require.Equal(t, rs.Spec.Template.Spec, pod.Spec)
			require.True(t, metav1.IsControlledBy(pod, rs))
			require.True(t, *pod.OwnerReferences[0].BlockOwnerDeletion)
		}
		require.Equal(t, 3, a.requests["create pods"])
		require.LessOrEqual(t, a.requests["update replicasets"], 2)
	})
}

func TestStatus(t *testing.T) {
	reconciliation(t, 3, func(t *testing.T, a *fakeServer) {
		none := int32(0)
		one := int32(1)
		require.Equal(t, appsv1.ReplicaSetStatus{
			Replicas: 3, FullyLabeledReplicas: 3, ObservedGeneration: 1, TerminatingReplicas: &none,
		}, a.replicaSet(ns, "web").Status)
		made := web(a)
		ready(a, made[0], "node")
		ready(a, made[1], "node")
		change(a, replicasets, ns, "web", func(rs *appsv1.ReplicaSet) {
			rs.Generation++
			rs.Spec.Template.Labels["new"] = "label"
		})
		synctest.Wait()
		require.Equal(t, appsv1.ReplicaSetStatus{
			Replicas: 3, ReadyReplicas: 2, AvailableReplicas: 2, ObservedGeneration: 2, TerminatingReplicas: &none,
		}, a.replicaSet(ns, "web").Status)
		a.erase(pods, ns, made[0].Name, false)
		synctest.Wait()
		require.Equal(t, appsv1.ReplicaSetStatus{
			Replicas: 3, FullyLabeledReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1, ObservedGeneration: 2,
			TerminatingReplicas: &one,
		}, a.replicaSet(ns, "web").Status)
	})
}

func TestOldServerDropsTerminatingReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeServer()
		a.old = true
		a.put(replicasets, newSet("web", 1))
		start(t, a)
		writes := a.requests["update replicasets"]
		change(a, replicasets, ns, "web", func(rs *appsv1.ReplicaSet) { rs.Labels = map[string]string{"any": "change"} })
		synctest.Wait()
		require.Equal(t, writes, a.requests["update replicasets"], "there is nothing new to write")
	})
}

func TestMinReadySecondsIsExact(t *testing.T) {
	reconciliation(t, 2, func(t *testing.T, a *fakeServer) {
		change(a, replicasets, ns, "web", func(rs *appsv1.ReplicaSet) { rs.Spec.MinReadySeconds = 10 })
		made := web(a)
		time.Sleep(time.Second - time.Duration(time.Now().Nanosecond())) // timestamps count whole seconds
		synctest.Wait()
		ready(a, made[0], "node")
		time.Sleep(4 * time.Second)
		synctest.Wait()
		ready(a, made[1], "node")
		for _, step := range []struct {
			after     time.Duration
			available int32
		}{
			{6*time.Second - time.Nanosecond, 0}, {time.Nanosecond, 1},
			{4*time.Second - time.Nanosecond, 1}, {time.Nanosecond, 2},
		} {
			time.Sleep(step.after)
			synctest.Wait()
			synctest.Wait()
			require.Equal(t, int32(2), a.replicaSet(ns, "web").Status.ReadyReplicas)
			require.Equal(t, step.available, a.replicaSet(ns, "web").Status.AvailableReplicas)
		}
	})
}

func TestScalesDownAndReplaces(t *testing.T) {
	reconciliation(t, 4, func(t *testing.T, a *fakeServer) {
		made := web(a)
		ready(a, made[1], "node")
		ready(a, made[3], "node")
		synctest.Wait()
		scale(a, "web", 2)
		synctest.Wait()
		left := web(a)
		require.Equal(t, []string{made[1].Name, made[3].Name}, []string{left[0].Name, left[1].Name})
		change(a, pods, ns, made[1].Name, func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed })
		synctest.Wait()
		require.Len(t, web(a), 2)
		scale(a, "web", 0)
		synctest.Wait()
		require.Empty(t, web(a))
		require.Equal(t, int32(0), a.replicaSet(ns, "web").Status.Replicas)
	})
}

func TestAdoptsAndReleases(t *testing.T) {
	reconciliation(t, 2, func(t *testing.T, a *fakeServer) {
		stray := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "stray"}}
		a.put(pods, stray)
		synctest.Wait()
		require.Len(t, web(a), 2)
		change(a, pods, ns, "stray", func(pod *corev1.Pod) { pod.Labels = map[string]string{"app": "web"} })
		synctest.Wait()
		require.Equal(t, 1, a.requests["delete pods"], "the adopted one was one too many")
		made := web(a)
		require.Len(t, made, 2)
		change(a, pods, ns, made[0].Name, func(pod *corev1.Pod) { pod.Labels = map[string]string{"app": "other"} })
		synctest.Wait()
		require.Len(t, web(a), 2)
		for _, pod := range web(a) {
			require.NotEqual(t, made[0].Name, pod.Name)
		}
		a.mu.Lock()
		require.Empty(t, a.objects[pods][key(ns, made[0].Name)].GetOwnerReferences())
		a.mu.Unlock()
	})
}

func TestLeavesPodsOfOthersAlone(t *testing.T) {
	reconciliation(t, 1, func(t *testing.T, a *fakeServer) {
		foreign := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: ns, Name: "foreign", Labels: map[string]string{"app": "web"},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(newSet("else", 1), appsv1.SchemeGroupVersion.WithKind("ReplicaSet")),
			},
		}}
		foreign.OwnerReferences[0].UID = "other"
		a.put(pods, foreign)
		synctest.Wait()
		require.Len(t, web(a), 1)
		require.Zero(t, a.requests["patch pods"])
		require.Zero(t, a.requests["delete pods"])
	})
}

func TestDeletionOfTheSetStopsWork(t *testing.T) {
	reconciliation(t, 2, func(t *testing.T, a *fakeServer) {
		change(a, replicasets, ns, "web", func(rs *appsv1.ReplicaSet) {
			now := metav1.Now()
			rs.DeletionTimestamp = &now
		})
		synctest.Wait() // of two watches, that of the Pods may be the faster
		made := web(a)
		a.erase(pods, ns, made[0].Name, true)
		stray := metav1.ObjectMeta{Namespace: ns, Name: "x", Labels: map[string]string{"app": "web"}}
		a.put(pods, &corev1.Pod{ObjectMeta: stray})
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, web(a), 1)
		require.Zero(t, a.requests["patch pods"])
		a.erase(replicasets, ns, "web", true)
		a.put(replicasets, newSet("web", 2)) // again under the same name
		synctest.Wait()
		require.Len(t, web(a), 2)
	})
}
