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

// schedulerPollPeriod is the period in which upstream's scheduler checks whether a claim is bound after it has selected a
// node.
const schedulerPollPeriod = time.Second

// TestClaimsAreNotWaitedForBySeconds shows that no poll delays a Pod whose new claim is bound. A single Pod that is bound
// sooner than a poll would allow proves it; one of several is enough, because a busy machine may be slow.
func TestClaimsAreNotWaitedForBySeconds(t *testing.T) {
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	client := c.client()
	var times []bindingWaits
	for i := range 8 {
		times = append(times, scheduleStateful(t, client, fmt.Sprintf("stateful-%d", i)))
		if times[i].unpolled() {
			break
		}
	}
	t.Logf("each waited %v", times)
	require.True(t, slices.ContainsFunc(times, bindingWaits.unpolled), "the scheduler polls")
	c.stop()
	require.Empty(t, c.leftovers())
}

// bindingWaits is how long a Pod's claim waited for its volume after the scheduler had selected a node, and how long the Pod
// waited then for its binding.
type bindingWaits struct{ forVolume, forNode time.Duration }

func (w bindingWaits) String() string {
	return fmt.Sprintf("%v for its volume, %v for its node", w.forVolume, w.forNode)
}

// unpolled reports whether no poll after schedulerPollPeriod can have been involved. On a machine so slow that a volume takes longer
// than that, a poll would still delay a Pod much more than the binding takes.
func (w bindingWaits) unpolled() bool {
	return w.forVolume+w.forNode < schedulerPollPeriod || w.forNode < w.forVolume/2
}

// scheduleStateful creates a Pod with a claim of its own and returns its waits.
func scheduleStateful(t *testing.T, client kubernetes.Interface, name string) bindingWaits {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	pods, claims := client.CoreV1().Pods("default"), client.CoreV1().PersistentVolumeClaims("default")
	one := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
	ofPod, err := pods.Watch(ctx, one)
	require.NoError(t, err)
	defer ofPod.Stop()
	ofClaim, err := claims.Watch(ctx, one)
	require.NoError(t, err)
	defer ofClaim.Stop()
	_, err = claims.Create(ctx, &corev1.PersistentVolumeClaim{
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
	var chosen, bound, given time.Time
	for bound.IsZero() || given.IsZero() {
		select {
		case event := <-ofClaim.ResultChan():
			claim, ok := event.Object.(*corev1.PersistentVolumeClaim)
			require.True(t, ok, "the watch of claim %s ended: %v", name, event.Object)
			if chosen.IsZero() && claim.Annotations["volume.kubernetes.io/selected-node"] != "" {
				chosen = time.Now()
			}
			if bound.IsZero() && claim.Status.Phase == corev1.ClaimBound {
				bound = time.Now()
			}
		case event := <-ofPod.ResultChan():
			pod, ok := event.Object.(*corev1.Pod)
			require.True(t, ok, "the watch of pod %s ended: %v", name, event.Object)
			if given.IsZero() && pod.Spec.NodeName != "" {
				given = time.Now()
			}
		}
	}
	require.False(t, chosen.IsZero(), "no node was selected for claim %s", name)
	return bindingWaits{forVolume: bound.Sub(chosen), forNode: given.Sub(bound)}
}
