package objects_test

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/kubelet/objects"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a Manager and the API server that it talks to. A watch is opened by the Manager and fed by the test.
type world struct {
	*objects.Manager
	client  *fake.Clientset
	clock   *testclock.FakeClock
	changed chan types.UID
	watches chan *watch.FakeWatcher
	version int
}

func start(t *testing.T, existing ...runtime.Object) *world {
	t.Helper()
	w := &world{
		client: fake.NewClientset(existing...), clock: testclock.NewFakeClock(time.Now()),
		changed: make(chan types.UID, 100), watches: make(chan *watch.FakeWatcher, 100), version: 100,
	}
	w.client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		events := watch.NewFakeWithChanSize(100, false)
		w.watches <- events
		return true, events, nil
	})
	w.Manager = objects.New(objects.Deps{Client: w.client, Clock: w.clock})
	t.Cleanup(w.Subscribe(func(uid types.UID) { w.changed <- uid }))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Start(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
	return w
}

func (w *world) configMap(value string) *corev1.ConfigMap {
	w.version++
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "conf", ResourceVersion: strconv.Itoa(w.version)},
		Data:       map[string]string{"k": value},
	}
}

func pod(uid types.UID, configMaps ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: string(uid), UID: uid}}
	for _, name := range configMaps {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}})
	}
	return p
}

func (w *world) value(t *testing.T) string {
	t.Helper()
	configMap, err := w.ConfigMap(t.Context(), "ns", "conf")
	if apierrors.IsNotFound(err) {
		return "(absent)"
	}
	require.NoError(t, err)
	return configMap.Data["k"]
}

func (w *world) gets() int {
	n := 0
	for _, action := range w.client.Actions() {
		if action.GetVerb() == "get" {
			n++
		}
	}
	return n
}

func TestOneWatchServesAllPods(t *testing.T) {
	w := start(t)
	require.NoError(t, w.client.Tracker().Add(w.configMap("1")))
	w.Acquire(pod("a", "conf"))
	require.Equal(t, types.UID("a"), <-w.changed)
	require.Equal(t, "1", w.value(t))
	events := <-w.watches
	w.Acquire(pod("b", "conf"))
	require.Equal(t, "1", w.value(t))
	require.Equal(t, 1, w.gets(), "the second Pod must not ask the API server")

	events.Modify(w.configMap("2"))
	require.ElementsMatch(t, []types.UID{"a", "b"}, []types.UID{<-w.changed, <-w.changed})
	require.Equal(t, "2", w.value(t))

	w.Release("a")
	events.Delete(w.configMap("2"))
	require.Equal(t, types.UID("b"), <-w.changed)
	require.Equal(t, "(absent)", w.value(t))
	events.Add(w.configMap("3"))
	require.Equal(t, types.UID("b"), <-w.changed)
	require.Equal(t, "3", w.value(t))

	require.Equal(t, 1, w.Watched())
	w.Release("b")
	w.untilIdleIsOver(t)
	require.Zero(t, w.Watched())
	require.Eventually(t, events.IsStopped, time.Minute, time.Millisecond, "the watch must end with the last Pod")
}

func TestStaleEventsAreIgnored(t *testing.T) {
	w := start(t)
	stale := w.configMap("old")
	require.NoError(t, w.client.Tracker().Add(w.configMap("new")))
	w.Acquire(pod("a", "conf"))
	require.Equal(t, "new", w.value(t))
	<-w.changed
	events := <-w.watches
	events.Add(stale)
	events.Delete(stale)
	foreign := w.configMap("foreign")
	foreign.Name = "other"
	events.Add(foreign)
	events.Modify(w.configMap("newer")) // taken after the ones before it
	<-w.changed
	require.Equal(t, "newer", w.value(t))
	require.Empty(t, w.changed)
}

func TestObjectThatAppearsLater(t *testing.T) {
	w := start(t)
	w.Acquire(pod("a", "conf"))
	require.Equal(t, types.UID("a"), <-w.changed)
	_, err := w.ConfigMap(t.Context(), "ns", "conf")
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	(<-w.watches).Add(w.configMap("1"))
	require.Equal(t, types.UID("a"), <-w.changed)
	require.Equal(t, "1", w.value(t))
}

func TestWatchThatEndsIsOpenedAnew(t *testing.T) {
	w := start(t)
	require.NoError(t, w.client.Tracker().Add(w.configMap("1")))
	w.Acquire(pod("a", "conf"))
	<-w.changed
	events := <-w.watches
	events.Modify(w.configMap("2"))
	<-w.changed
	// What happens while no watch is open is found by the GET before the next one.
	require.NoError(t, w.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), w.configMap("3"), "ns"))
	events.Stop()
	require.Equal(t, types.UID("a"), <-w.changed)
	require.Equal(t, "3", w.value(t))
	events = <-w.watches
	events.Error(&apierrors.NewResourceExpired("too old").ErrStatus)
	require.Eventually(t, w.clock.HasWaiters, time.Minute, time.Millisecond)
	w.clock.Step(time.Second)
	<-w.watches
}

// refuse answers the next reads with the error.
func (w *world) refuse(times int32, err error) {
	var left atomic.Int32
	left.Store(times)
	w.client.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return left.Add(-1) >= 0, nil, err
	})
}

func TestErrorIsTriedAgain(t *testing.T) {
	w := start(t)
	w.refuse(1, apierrors.NewInternalError(errors.New("etcd is away")))
	require.NoError(t, w.client.Tracker().Add(w.configMap("1")))
	w.Acquire(pod("a", "conf"))
	<-w.changed
	_, err := w.ConfigMap(t.Context(), "ns", "conf")
	require.True(t, apierrors.IsInternalError(err), "%v", err)
	require.Eventually(t, w.clock.HasWaiters, time.Minute, time.Millisecond)
	w.clock.Step(50 * time.Millisecond)
	require.Equal(t, types.UID("a"), <-w.changed)
	require.Equal(t, "1", w.value(t))
}

// TestObjectThatMayNotBeReadYet: nobody hears of a refusal that lasts until the authorizer has seen the Pod.
func TestObjectThatMayNotBeReadYet(t *testing.T) {
	w := start(t)
	w.refuse(2, apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "conf", errors.New("no relationship")))
	require.NoError(t, w.client.Tracker().Add(w.configMap("1")))
	w.Acquire(pod("a", "conf"))
	for range 2 {
		require.Eventually(t, w.clock.HasWaiters, time.Minute, time.Millisecond)
		w.clock.Step(8 * time.Millisecond)
	}
	require.Equal(t, types.UID("a"), <-w.changed)
	require.Equal(t, "1", w.value(t))
	require.Equal(t, 3, w.gets())
}

func TestImmutableObjectIsNotWatched(t *testing.T) {
	w := start(t)
	immutable := true
	configMap := w.configMap("1")
	configMap.Immutable = &immutable
	require.NoError(t, w.client.Tracker().Add(configMap))
	w.Acquire(pod("a", "conf"))
	<-w.changed
	require.Equal(t, "1", w.value(t))
	w.Acquire(pod("b", "conf", "other"))
	<-w.changed // of the other, which is not there; its watch is the only one
	<-w.watches
	for _, action := range w.client.Actions() {
		if watched, ok := action.(clienttesting.WatchAction); ok {
			require.Equal(t, "metadata.name=other", watched.GetWatchRestrictions().Fields.String())
		}
	}
}

func TestGetOfAnObjectThatNobodyAcquiredAsksTheServer(t *testing.T) {
	w := start(t)
	require.NoError(t, w.client.Tracker().Add(w.configMap("1")))
	require.Equal(t, "1", w.value(t))
	require.Equal(t, "1", w.value(t))
	require.Equal(t, 2, w.gets())
	require.Zero(t, w.Watched())
}

func TestReferences(t *testing.T) {
	ref := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: corev1.PodSpec{
		ImagePullSecrets: []corev1.LocalObjectReference{ref("pull"), ref("")},
		InitContainers:   []corev1.Container{{EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref("init")}}}}},
		Containers: []corev1.Container{{Env: []corev1.EnvVar{
			{Name: "plain", Value: "x"},
			{ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ref("env")}}},
			{ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: ref("env-map")}}},
		}}},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref("debug")}}}}}},
		Volumes: []corev1.Volume{
			{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "volume"}}},
			{VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref("volume-map")}}},
			{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{Secret: &corev1.SecretProjection{LocalObjectReference: ref("projected")}},
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: ref("projected-map")}},
			}}}},
		},
	}}
	want := map[objects.Ref]struct{}{}
	for _, name := range []string{"pull", "init", "env", "volume", "projected"} {
		want[objects.Ref{Kind: objects.KindSecret, Namespace: "ns", Name: name}] = struct{}{}
	}
	for _, name := range []string{"env-map", "debug", "volume-map", "projected-map"} {
		want[objects.Ref{Kind: objects.KindConfigMap, Namespace: "ns", Name: name}] = struct{}{}
	}
	require.Equal(t, want, objects.References(p))
}
