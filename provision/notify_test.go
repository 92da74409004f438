package provision_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/provision"
)

// readyProvisioner passes on what the test sends.
type readyProvisioner struct {
	fakeProvisioner
	ready chan types.UID
}

func (p *readyProvisioner) NotifyProvisionable(ctx context.Context, notify func(types.UID)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case uid := <-p.ready:
			notify(uid)
		}
	}
}

// TestNotifiedClaimDoesNotWait retries a claim that failed, and not one that did not.
func TestNotifiedClaimDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &readyProvisioner{ready: make(chan types.UID)}
		p.setProvisionErr(func(provision.VolumeOptions) error { return errors.New("the source is not ready") })
		s := run(t, newFakeAPI(newClass("fast")), p, provision.ResyncPeriod(0))
		claim := s.api.createClaim(t, newClaim("claim", "fast"))
		s.advance(time.Second)
		require.Equal(t, 1, p.callCount())
		p.ready <- "another"
		s.advance(time.Second)
		require.Equal(t, 1, p.callCount())
		p.setProvisionErr(nil)
		p.ready <- claim.UID
		synctest.Wait()
		require.Equal(t, 2, p.callCount(), "without waiting for the backoff")
	})
}

// TestRetryNow tries everything that failed, and what was given up, when the storage is back.
func TestRetryNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeProvisioner{deleteErr: func(*corev1.PersistentVolume) error { return errors.New("away") }}
		p.setProvisionErr(func(provision.VolumeOptions) error { return errors.New("away") })
		volume := newVolume(provision.VolumeOptions{PVName: "disk", PVC: newClaim("old", "fast")})
		volume.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": driverName}
		volume.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "old", UID: "old-uid"}
		volume.Status.Phase = corev1.VolumeReleased
		s := run(t, newFakeAPI(newClass("fast"), volume), p, provision.ResyncPeriod(0), provision.FailedProvisionThreshold(1),
			provision.FailedDeleteThreshold(0))
		s.api.createClaim(t, newClaim("claim", "fast"))
		s.advance(time.Hour)
		require.Equal(t, 2, p.callCount(), "one retry, then it is given up")
		deletions := len(p.deleted())

		p.setProvisionErr(nil)
		s.ctrl.RetryNow()
		synctest.Wait()
		require.Equal(t, 3, p.callCount())
		require.Len(t, p.deleted(), deletions+1)
		s.stop()
		s.ctrl.RetryNow() // without effect
		require.Equal(t, 3, p.callCount())
	})
}
