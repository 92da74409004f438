package objects_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// waitIdleExpiry advances the clock until unused objects are removed.
func (f *fixture) waitIdleExpiry(t *testing.T) {
	t.Helper()
	require.Eventually(t, f.clock.HasWaiters, time.Minute, time.Millisecond)
	require.Equal(t, 1, f.Watched(), "the next Pod may come soon")
	f.clock.Step(time.Minute)
	require.Eventually(t, func() bool { return f.Watched() == 0 }, time.Minute, time.Millisecond)
}

func TestNextPodReadsAndOpensNoWatch(t *testing.T) {
	f := start(t)
	require.NoError(t, f.client.Tracker().Add(f.configMap("1")))
	f.Acquire(pod("a", "conf"))
	require.Equal(t, types.UID("a"), <-f.changed)
	events := <-f.watches
	f.Release("a")
	require.Equal(t, 1, f.Watched())

	// The watch has not delivered this yet, but the Pod was created after it.
	require.NoError(t, f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), f.configMap("2"), "ns"))
	f.Acquire(pod("b", "conf"))
	require.Equal(t, "2", f.value(t))
	require.Equal(t, types.UID("b"), <-f.changed)
	require.Equal(t, 2, f.gets())
	events.Modify(f.configMap("3"))
	require.Equal(t, types.UID("b"), <-f.changed)
	require.Equal(t, "3", f.value(t))
	require.Empty(t, f.watches)

	f.Release("b")
	f.waitIdleExpiry(t)
}

func TestPodThatComesBackInTimeKeepsItsObject(t *testing.T) {
	f := start(t)
	require.NoError(t, f.client.Tracker().Add(f.configMap("1")))
	f.Acquire(pod("a", "conf"))
	<-f.changed
	<-f.watches
	f.Release("a")
	require.Eventually(t, f.clock.HasWaiters, time.Minute, time.Millisecond)
	f.clock.Step(30 * time.Second)
	f.Acquire(pod("b", "conf"))
	f.Release("b") // idle again
	f.Acquire(pod("c", "conf"))
	require.Equal(t, "1", f.value(t))
	f.clock.Step(time.Hour)
	f.Acquire(pod("d", "conf", "other")) // its response comes after the clock's
	<-f.changed
	require.Equal(t, 2, f.Watched(), "a Pod needs it")
}

func TestIdleObjectWhoseWatchEndsIsForgotten(t *testing.T) {
	f := start(t)
	require.NoError(t, f.client.Tracker().Add(f.configMap("1")))
	f.Acquire(pod("a", "conf"))
	<-f.changed
	events := <-f.watches
	events.Modify(f.configMap("2"))
	<-f.changed
	f.Release("a")
	events.Stop()
	require.Eventually(t, func() bool { return f.Watched() == 0 }, time.Minute, time.Millisecond)
	require.Equal(t, 1, f.gets(), "a node may not read what none of its Pods needs")
}

func TestSecretIsForgottenWithItsLastPod(t *testing.T) {
	f := start(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", ResourceVersion: "1"}}
	require.NoError(t, f.client.Tracker().Add(secret))
	p := pod("a")
	p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "s"}}
	f.Acquire(p)
	<-f.changed
	events := <-f.watches
	f.Release("a")
	require.Zero(t, f.Watched())
	require.Eventually(t, events.IsStopped, time.Minute, time.Millisecond)
}

func TestIdleObjectsAreBounded(t *testing.T) {
	const many = 100
	f := start(t)
	for i := range many {
		name := fmt.Sprint("conf-", i)
		configMap := f.configMap("1")
		configMap.Name = name
		require.NoError(t, f.client.Tracker().Add(configMap))
		f.Acquire(pod(types.UID(name), name))
		<-f.changed
		f.Release(types.UID(name))
	}
	require.Eventually(t, func() bool { return f.Watched() == 64 }, time.Minute, time.Millisecond)
}

// TestIdleObjectIsReplacedByAnImmutableOne replaces an idle object by an immutable one, and that by another: each Pod
// gets the object that exists when it is acquired.
func TestIdleObjectIsReplacedByAnImmutableOne(t *testing.T) {
	resource := corev1.SchemeGroupVersion.WithResource("configmaps")
	f := idleAndFixed(t, resource)
	f.Acquire(pod("b", "conf"))
	require.Equal(t, "2", f.value(t))
	f.Release("b")
	require.Zero(t, f.Watched(), "it cannot change, and costs one read to have it again")

	f = idleAndFixed(t, resource)
	require.NoError(t, f.client.Tracker().Update(resource, f.configMap("3"), "ns"))
	f.Acquire(pod("b", "conf"))
	require.Equal(t, "3", f.value(t))
	<-f.changed
	(<-f.watches).Modify(f.configMap("4"))
	<-f.changed
	require.Equal(t, "4", f.value(t))
}

// idleAndFixed returns a fixture with an object that became immutable after its last Pod was released.
func idleAndFixed(t *testing.T, resource schema.GroupVersionResource) *fixture {
	t.Helper()
	f := start(t)
	require.NoError(t, f.client.Tracker().Add(f.configMap("1")))
	f.Acquire(pod("a", "conf"))
	<-f.changed
	events := <-f.watches
	f.Release("a")
	fixed := f.configMap("2")
	fixed.Immutable = ptr.To(true)
	require.NoError(t, f.client.Tracker().Update(resource, fixed, "ns"))
	events.Modify(fixed)
	require.Eventually(t, events.IsStopped, time.Minute, time.Millisecond)
	return f
}
