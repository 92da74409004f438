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

// fixture is a Manager with its API server. The Manager opens watches, and the test sends their events.
type fixture struct {
	*objects.Manager
	client  *fake.Clientset
	clock   *testclock.FakeClock
	changed chan types.UID
	watches chan *watch.FakeWatcher
	version int
}

func start(t *testing.T, existing ...runtime.Object) *fixture {
	t.Helper()
	f := &fixture{
		client: fake.NewClientset(existing...), clock: testclock.NewFakeClock(time.Now()),
		changed: make(chan types.UID, 100), watches: make(chan *watch.FakeWatcher, 100), version: 100,
	}
	f.client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		events := watch.NewFakeWithChanSize(100, false)
		f.watches <- events
		return true, events, nil
	})
	var err error
	f.Manager, err = objects.New(objects.Deps{Client: f.client, Clock: f.clock})
	require.NoError(t, err)
	t.Cleanup(f.Subscribe(func(uid types.UID) { f.changed <- uid }))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Start(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
	return f
}

func (f *fixture) configMap(value string) *corev1.ConfigMap {
	f.version++
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "conf", ResourceVersion: strconv.Itoa(f.version)},
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

func (f *fixture) value(t *testing.T) string {
	t.Helper()
	configMap, err := f.ConfigMap(t.Context(), "ns", "conf")
	if apierrors.IsNotFound(err) {
		return "(absent)"
	}
	require.NoError(t, err)
	return configMap.Data["k"]
}

func (f *fixture) gets() int {
	n := 0
	for _, action := range f.client.Actions() {
		if action.GetVerb() == "get" {
			n++
		}
	}
	return n
}

func TestOneWatchServesAllPods(t *testing.T) {
	f := start(t)
	require.NoError(t, f.client.Tracker().Add(f.configMap("1")))
	f.Acquire(pod("a", "conf"))
	require.Equal(t, types.UID("a"), <-f.changed)
	require.Equal(t, "1", f.value(t))
	events := <-f.watches
	f.Acquire(pod("b", "conf"))
	require.Equal(t, "1", f.value(t))
	require.Equal(t, 1, f.gets(), "the second Pod must not ask the API server")

	events.Modify(f.configMap("2"))
	require.ElementsMatch(t, []types.UID{"a", "b"}, []types.UID{<-f.changed, <-f.changed})
	require.Equal(t, "2", f.value(t))

	f.Release("a")
	events.Delete(f.configMap("2"))
	require.Equal(t, types.UID("b"), <-f.changed)
	require.Equal(t, "(absent)", f.value(t))
	events.Add(f.configMap("3"))
	require.Equal(t, types.UID("b"), <-f.changed)
	require.Equal(t, "3", f.value(t))

	require.Equal(t, 1, f.Watched())
	f.Release("b")
	f.waitIdleExpiry(t)
	require.Zero(t, f.Watched())
	require.Eventually(t, events.IsStopped, time.Minute, time.Millisecond, "the watch must end with the last Pod")
}

func TestStaleEventsAreIgnored(t *testing.T) {
	f := start(t)
	stale := f.configMap("old")
	require.NoError(t, f.client.Tracker().Add(f.configMap("new")))
	f.Acquire(pod("a", "conf"))
	require.Equal(t, "new", f.value(t))
	<-f.changed
	events := <-f.watches
	events.Add(stale)
	events.Delete(stale)
	foreign := f.configMap("foreign")
	foreign.Name = "other"
	events.Add(foreign)
	events.Modify(f.configMap("newer")) // applied after the previous ones
	<-f.changed
	require.Equal(t, "newer", f.value(t))
	require.Empty(t, f.changed)
}

func TestObjectThatAppearsLater(t *testing.T) {
	f := start(t)
	f.Acquire(pod("a", "conf"))
	require.Equal(t, types.UID("a"), <-f.changed)
	_, err := f.ConfigMap(t.Context(), "ns", "conf")
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	(<-f.watches).Add(f.configMap("1"))
	require.Equal(t, types.UID("a"), <-f.changed)
	require.Equal(t, "1", f.value(t))
}

func TestWatchThatEndsIsOpenedAnew(t *testing.T) {
	f := start(t)
	require.NoError(t, f.client.Tracker().Add(f.configMap("1")))
	f.Acquire(pod("a", "conf"))
	<-f.changed
	events := <-f.watches
	events.Modify(f.configMap("2"))
	<-f.changed
	// What happens while no watch is open is found by the GET before the next one.
	require.NoError(t, f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), f.configMap("3"), "ns"))
	events.Stop()
	require.Equal(t, types.UID("a"), <-f.changed)
	require.Equal(t, "3", f.value(t))
	events = <-f.watches
	events.Error(&apierrors.NewResourceExpired("too old").ErrStatus)
	require.Eventually(t, f.clock.HasWaiters, time.Minute, time.Millisecond)
	f.clock.Step(time.Second)
	<-f.watches
}

// failGets makes the next reads fail with the error.
func (f *fixture) failGets(times int32, err error) {
	var left atomic.Int32
	left.Store(times)
	f.client.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return left.Add(-1) >= 0, nil, err
	})
}

func TestErrorIsTriedAgain(t *testing.T) {
	f := start(t)
	f.failGets(1, apierrors.NewInternalError(errors.New("etcd is away")))
	require.NoError(t, f.client.Tracker().Add(f.configMap("1")))
	f.Acquire(pod("a", "conf"))
	<-f.changed
	_, err := f.ConfigMap(t.Context(), "ns", "conf")
	require.True(t, apierrors.IsInternalError(err), "%v", err)
	require.Eventually(t, f.clock.HasWaiters, time.Minute, time.Millisecond)
	f.clock.Step(50 * time.Millisecond)
	require.Equal(t, types.UID("a"), <-f.changed)
	require.Equal(t, "1", f.value(t))
}

// TestObjectThatMayNotBeReadYet: a refusal that lasts until the authorizer knows the Pod is retried and not reported.
func TestObjectThatMayNotBeReadYet(t *testing.T) {
	f := start(t)
	f.failGets(2, apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "conf", errors.New("no relationship")))
	require.NoError(t, f.client.Tracker().Add(f.configMap("1")))
	f.Acquire(pod("a", "conf"))
	for range 2 {
		require.Eventually(t, f.clock.HasWaiters, time.Minute, time.Millisecond)
		f.clock.Step(8 * time.Millisecond)
	}
	require.Equal(t, types.UID("a"), <-f.changed)
	require.Equal(t, "1", f.value(t))
	require.Equal(t, 3, f.gets())
}

func TestImmutableObjectIsNotWatched(t *testing.T) {
	f := start(t)
	immutable := true
	configMap := f.configMap("1")
	configMap.Immutable = &immutable
	require.NoError(t, f.client.Tracker().Add(configMap))
	f.Acquire(pod("a", "conf"))
	<-f.changed
	require.Equal(t, "1", f.value(t))
	f.Acquire(pod("b", "conf", "other"))
	<-f.changed // of the other, which does not exist; its watch is the only one
	<-f.watches
	for _, action := range f.client.Actions() {
		if watched, ok := action.(clienttesting.WatchAction); ok {
			require.Equal(t, "metadata.name=other", watched.GetWatchRestrictions().Fields.String())
		}
	}
}

func TestGetOfUnacquiredObjectReadsFromServer(t *testing.T) {
	f := start(t)
	require.NoError(t, f.client.Tracker().Add(f.configMap("1")))
	require.Equal(t, "1", f.value(t))
	require.Equal(t, "1", f.value(t))
	require.Equal(t, 2, f.gets())
	require.Zero(t, f.Watched())
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
