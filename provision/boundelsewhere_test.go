package provision_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/provision"
)

// staticPrefix begins the names of volumes that are created by hand.
const staticPrefix = "static-"

// bindElsewhere does what Kubernetes does when a volume is created by hand that matches a pending claim: the volume names
// the claim first, then the claim the volume.
func (api *fakeAPI) bindElsewhere(t *testing.T, claim string) {
	t.Helper()
	waiting := api.claim(t, claim)
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: staticPrefix + claim},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:                      &corev1.ObjectReference{Namespace: "ns", Name: claim, UID: waiting.UID},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
	_, err := api.client(nil).CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{})
	require.NoError(t, err)
	synctest.Wait()
	api.updateClaim(t, claim, func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName, c.Status.Phase = pv.Name, corev1.ClaimBound
	})
	synctest.Wait()
}

// A claim that is bound to another volume while one is being provisioned for it is finished: the volume is saved, for
// Kubernetes to release, and none is left that no PersistentVolume names.
func TestClaimBoundElsewhereWhileInProgress(t *testing.T) {
	requireNothingLeft := func(t *testing.T, s *fixture, p *fakeProvisioner) {
		t.Helper()
		s.advance(time.Minute)
		require.Len(t, s.api.volumes(t), 2, "the static one and the one that was made")
		require.Empty(t, s.api.claim(t, "claim").Finalizers)
		s.api.bindAndRelease(t)
		s.advance(time.Minute)
		left := s.api.volumes(t)
		require.Len(t, left, 1)
		require.Equal(t, staticPrefix+"claim", left[0].Name)
		require.Len(t, p.deleted(), 1)
	}
	runSynctest("in the background", t, func(t *testing.T) {
		p := &scriptedProvisioner{states: []provision.ProvisioningState{provision.ProvisioningInBackground}}
		s := run(t, newFakeAPI(newClass("fast")), p)
		s.api.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		s.api.bindElsewhere(t, "claim")
		requireNothingLeft(t, s, &p.fakeProvisioner)
	})
	runSynctest("during the call", t, func(t *testing.T) {
		p, answer := &fakeProvisioner{}, make(chan error)
		p.setProvisionErr(func(provision.VolumeOptions) error { return <-answer })
		s := run(t, newFakeAPI(newClass("fast")), p)
		s.api.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		s.api.bindElsewhere(t, "claim")
		answer <- nil
		requireNothingLeft(t, s, p)
	})
	runSynctest("before it is saved", t, func(t *testing.T) {
		p := &fakeProvisioner{}
		var refused atomic.Bool
		refused.Store(true)
		api := newFakeAPI(newClass("fast"))
		process := &process{nextFault: func(what string) fault {
			if what == "create persistentvolumes" && refused.Load() {
				return failBefore
			}
			return noFault
		}}
		s := runWithProcess(t, api, process, p)
		api.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		api.bindElsewhere(t, "claim")
		refused.Store(false)
		requireNothingLeft(t, s, p)
	})
	runSynctest("by an earlier process", t, func(t *testing.T) {
		p, api := &fakeProvisioner{}, newFakeAPI(newClass("fast"))
		claim := withUID(newClaim("claim", "fast"), "u")
		claim.Finalizers = []string{"example.com/intent"}
		api.createClaim(t, claim)
		api.bindElsewhere(t, "claim")
		s := run(t, api, p, provision.IntentFinalizer("example.com/intent"))
		requireNothingLeft(t, s, p)
	})
	runSynctest("not begun", t, func(t *testing.T) {
		p := &fakeProvisioner{}
		s := run(t, newFakeAPI(), p) // without its class
		s.api.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		s.api.bindElsewhere(t, "claim")
		_, err := s.api.client(nil).StorageV1().StorageClasses().Create(t.Context(), newClass("fast"), metav1.CreateOptions{})
		require.NoError(t, err)
		s.advance(time.Hour)
		require.Zero(t, p.callCount(), "it has what it needs")
	})
}

// A user can remove the intent of an earlier process from a claim whose class was deleted, and does not create the class
// again: the claim is gone then, and a volume may exist.
func TestClaimIsDeletedByHandBeforeItsClassExists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim := withUID(newClaim("claim", "fast"), "u")
		claim.Finalizers = []string{"example.com/intent"}
		p, api := &fakeProvisioner{}, newFakeAPI(claim)
		s := run(t, api, p, provision.IntentFinalizer("example.com/intent"))
		api.deleteClaim(t, "claim")
		s.advance(time.Minute)
		require.NotEmpty(t, withReason(s.drainEvents(), `storage class "fast" not found; create it again: a volume may exist`))
		api.updateClaim(t, "claim", func(c *corev1.PersistentVolumeClaim) { c.Finalizers = nil })
		err := api.client(nil).CoreV1().PersistentVolumeClaims("ns").Delete(t.Context(), "claim", metav1.DeleteOptions{})
		if !apierrors.IsNotFound(err) {
			require.NoError(t, err)
		}
		s.advance(time.Hour)
		require.Empty(t, api.claims(t))
		_, err = api.client(nil).StorageV1().StorageClasses().Create(t.Context(), newClass("fast"), metav1.CreateOptions{})
		require.NoError(t, err)
		s.advance(time.Minute)
		api.bindAndRelease(t)
		s.advance(time.Minute)
		require.Len(t, p.deleted(), 1, "what may have been there was found and removed")
		require.Empty(t, api.volumes(t))
	})
}
