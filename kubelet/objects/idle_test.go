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

// untilIdleIsOver moves the clock until what nobody needs is forgotten.
func (w *world) untilIdleIsOver(t *testing.T) {
	t.Helper()
	require.Eventually(t, w.clock.HasWaiters, time.Minute, time.Millisecond)
	require.Equal(t, 1, w.Watched(), "the next Pod may come soon")
	w.clock.Step(time.Minute)
	require.Eventually(t, func() bool { return w.Watched() == 0 }, time.Minute, time.Millisecond)
}

func TestNextPodReadsAndOpensNoWatch(t *testing.T) {
	w := start(t)
	require.NoError(t, w.client.Tracker().Add(w.configMap("1")))
	w.Acquire(pod("a", "conf"))
	require.Equal(t, types.UID("a"), <-w.changed)
	events := <-w.watches
	w.Release("a")
	require.Equal(t, 1, w.Watched())

	// The watch has not told of this yet, but the Pod was made after it.
	require.NoError(t, w.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), w.configMap("2"), "ns"))
	w.Acquire(pod("b", "conf"))
	require.Equal(t, "2", w.value(t))
	require.Equal(t, types.UID("b"), <-w.changed)
	require.Equal(t, 2, w.gets())
	events.Modify(w.configMap("3"))
	require.Equal(t, types.UID("b"), <-w.changed)
	require.Equal(t, "3", w.value(t))
	require.Empty(t, w.watches)

	w.Release("b")
	w.untilIdleIsOver(t)
}

func TestPodThatComesBackInTimeKeepsItsObject(t *testing.T) {
	w := start(t)
	require.NoError(t, w.client.Tracker().Add(w.configMap("1")))
	w.Acquire(pod("a", "conf"))
	<-w.changed
	<-w.watches
	w.Release("a")
	require.Eventually(t, w.clock.HasWaiters, time.Minute, time.Millisecond)
	w.clock.Step(30 * time.Second)
	w.Acquire(pod("b", "conf"))
	w.Release("b") // idle anew
	w.Acquire(pod("c", "conf"))
	require.Equal(t, "1", w.value(t))
	w.clock.Step(time.Hour)
	w.Acquire(pod("d", "conf", "other")) // its answer comes after the clock's
	<-w.changed
	require.Equal(t, 2, w.Watched(), "it is needed")
}

func TestIdleObjectWhoseWatchEndsIsForgotten(t *testing.T) {
	w := start(t)
	require.NoError(t, w.client.Tracker().Add(w.configMap("1")))
	w.Acquire(pod("a", "conf"))
	<-w.changed
	events := <-w.watches
	events.Modify(w.configMap("2"))
	<-w.changed
	w.Release("a")
	events.Stop()
	require.Eventually(t, func() bool { return w.Watched() == 0 }, time.Minute, time.Millisecond)
	require.Equal(t, 1, w.gets(), "a node may not read what none of its Pods needs")
}

func TestSecretIsForgottenWithItsLastPod(t *testing.T) {
	w := start(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", ResourceVersion: "1"}}
	require.NoError(t, w.client.Tracker().Add(secret))
	p := pod("a")
	p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "s"}}
	w.Acquire(p)
	<-w.changed
	events := <-w.watches
	w.Release("a")
	require.Zero(t, w.Watched())
	require.Eventually(t, events.IsStopped, time.Minute, time.Millisecond)
}

func TestNotMoreThanSomeObjectsAreFollowedForNobody(t *testing.T) {
	const many = 100
	w := start(t)
	for i := range many {
		name := fmt.Sprint("conf-", i)
		configMap := w.configMap("1")
		configMap.Name = name
		require.NoError(t, w.client.Tracker().Add(configMap))
		w.Acquire(pod(types.UID(name), name))
		<-w.changed
		w.Release(types.UID(name))
	}
	require.Eventually(t, func() bool { return w.Watched() == 64 }, time.Minute, time.Millisecond)
}

// TestIdleObjectIsReplacedByAnImmutableOne and that by another: each Pod gets what is there when it comes.
func TestIdleObjectIsReplacedByAnImmutableOne(t *testing.T) {
	resource := corev1.SchemeGroupVersion.WithResource("configmaps")
	w := idleAndFixed(t, resource)
	w.Acquire(pod("b", "conf"))
	require.Equal(t, "2", w.value(t))
	w.Release("b")
	require.Zero(t, w.Watched(), "it cannot change, and costs one read to have it again")

	w = idleAndFixed(t, resource)
	require.NoError(t, w.client.Tracker().Update(resource, w.configMap("3"), "ns"))
	w.Acquire(pod("b", "conf"))
	require.Equal(t, "3", w.value(t))
	<-w.changed
	(<-w.watches).Modify(w.configMap("4"))
	<-w.changed
	require.Equal(t, "4", w.value(t))
}

// idleAndFixed is a world with an object that has become immutable since its last Pod went.
func idleAndFixed(t *testing.T, resource schema.GroupVersionResource) *world {
	t.Helper()
	w := start(t)
	require.NoError(t, w.client.Tracker().Add(w.configMap("1")))
	w.Acquire(pod("a", "conf"))
	<-w.changed
	events := <-w.watches
	w.Release("a")
	fixed := w.configMap("2")
	fixed.Immutable = ptr.To(true)
	require.NoError(t, w.client.Tracker().Update(resource, fixed, "ns"))
	events.Modify(fixed)
	require.Eventually(t, events.IsStopped, time.Minute, time.Millisecond)
	return w
}
