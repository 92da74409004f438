package provision_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/provision"
)

// static begins the names of volumes that somebody makes by hand.
const static = "static-"

// bindElsewhere does what Kubernetes does when somebody makes a volume that suits a claim that still waits: the volume
// names the claim first, then the claim the volume.
func (w *world) bindElsewhere(t *testing.T, claim string) {
	t.Helper()
	waiting := w.claim(t, claim)
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: static + claim},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:                      &corev1.ObjectReference{Namespace: "ns", Name: claim, UID: waiting.UID},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
	_, err := w.client(nil).CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{})
	require.NoError(t, err)
	synctest.Wait()
	w.changeClaim(t, claim, func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName, c.Status.Phase = pv.Name, corev1.ClaimBound
	})
	synctest.Wait()
}

// A claim that is bound to a volume of somebody else's while one is being made for it is finished all the same: what is
// made is saved, for Kubernetes to release, and nothing is left that no PersistentVolume names.
func TestClaimBoundElsewhereWhileInProgress(t *testing.T) {
	requireNothingLeft := func(t *testing.T, s *setup, p *simple) {
		t.Helper()
		s.after(time.Minute)
		require.Len(t, s.world.volumes(t), 2, "the static one and the one that was made")
		require.Empty(t, s.world.claim(t, "claim").Finalizers)
		s.world.step(t)
		s.after(time.Minute)
		left := s.world.volumes(t)
		require.Len(t, left, 1)
		require.Equal(t, static+"claim", left[0].Name)
		require.Len(t, p.deleted(), 1)
	}
	bubble("in the background", t, func(t *testing.T) {
		p := &scripted{script: []provision.ProvisioningState{provision.ProvisioningInBackground}}
		s := run(t, newWorld(newClass("fast")), p)
		s.world.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		s.world.bindElsewhere(t, "claim")
		requireNothingLeft(t, s, &p.simple)
	})
	bubble("during the call", t, func(t *testing.T) {
		p, answer := &simple{}, make(chan error)
		p.answers(func(provision.VolumeOptions) error { return <-answer })
		s := run(t, newWorld(newClass("fast")), p)
		s.world.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		s.world.bindElsewhere(t, "claim")
		answer <- nil
		requireNothingLeft(t, s, p)
	})
	bubble("before it is saved", t, func(t *testing.T) {
		p, refused := &simple{}, true
		w := newWorld(newClass("fast"))
		api := &process{fault: func(what string) verdict {
			if what == "create persistentvolumes" && refused {
				return failBefore
			}
			return pass
		}}
		s := runIn(t, w, api, p)
		w.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		w.bindElsewhere(t, "claim")
		api.mu.Lock()
		refused = false
		api.mu.Unlock()
		requireNothingLeft(t, s, p)
	})
	bubble("by an earlier process", t, func(t *testing.T) {
		p, w := &simple{}, newWorld(newClass("fast"))
		claim := withUID(newClaim("claim", "fast"), "u")
		claim.Finalizers = []string{"example.com/intent"}
		w.createClaim(t, claim)
		w.bindElsewhere(t, "claim")
		s := run(t, w, p, provision.IntentFinalizer("example.com/intent"))
		requireNothingLeft(t, s, p)
	})
	bubble("not begun", t, func(t *testing.T) {
		p := &simple{}
		s := run(t, newWorld(), p) // without its class
		s.world.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		s.world.bindElsewhere(t, "claim")
		_, err := s.world.client(nil).StorageV1().StorageClasses().Create(t.Context(), newClass("fast"), metav1.CreateOptions{})
		require.NoError(t, err)
		s.after(time.Hour)
		require.Zero(t, p.count(), "it has what it needs")
	})
}

// An intent of an earlier process can be taken off a claim by hand, because the claim's class is gone and nobody means to
// make it anew: the claim is gone then, and a volume may be there.
func TestClaimIsTakenAwayByHandBeforeItsClassIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim := withUID(newClaim("claim", "fast"), "u")
		claim.Finalizers = []string{"example.com/intent"}
		p, w := &simple{}, newWorld(claim)
		s := run(t, w, p, provision.IntentFinalizer("example.com/intent"))
		w.deleteClaim(t, "claim")
		s.after(time.Minute)
		require.NotEmpty(t, only(s.eventsSoFar(), `storage class "fast" is not there; create it: a volume may exist`))
		w.changeClaim(t, "claim", func(c *corev1.PersistentVolumeClaim) { c.Finalizers = nil })
		err := w.client(nil).CoreV1().PersistentVolumeClaims("ns").Delete(t.Context(), "claim", metav1.DeleteOptions{})
		if !apierrors.IsNotFound(err) {
			require.NoError(t, err)
		}
		s.after(time.Hour)
		require.Empty(t, w.claims(t))
		_, err = w.client(nil).StorageV1().StorageClasses().Create(t.Context(), newClass("fast"), metav1.CreateOptions{})
		require.NoError(t, err)
		s.after(time.Minute)
		w.step(t)
		s.after(time.Minute)
		require.Len(t, p.deleted(), 1, "what may have been there was found and removed")
		require.Empty(t, w.volumes(t))
	})
}
