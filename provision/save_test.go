package provision_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"github.com/berth-dev/berth/provision"
)

// failRequests returns a process in which so many of these requests fail, with this verdict.
func failRequests(what string, times int, v fault) *process {
	var seen atomic.Int32
	return &process{kill: func() {}, nextFault: func(request string) fault {
		if request == what && int(seen.Add(1)) <= times {
			return v
		}
		return noFault
	}}
}

func withReason(events []string, reason string) []string {
	var found []string
	for _, e := range events {
		if strings.Contains(e, reason) {
			found = append(found, e)
		}
	}
	return found
}

func TestSaveIsTriedFiveTimesTenSecondsApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeProvisioner{}
		s := runWithProcess(t, newFakeAPI(newClass("fast")), failRequests("create persistentvolumes", 4, failBefore), p)
		s.api.createClaim(t, newClaim("claim", "fast"))
		s.advance(39 * time.Second)
		require.Empty(t, s.api.volumes(t))
		s.advance(2 * time.Second)
		require.Len(t, s.api.volumes(t), 1)
		require.Equal(t, 1, p.callCount())
		require.Empty(t, p.deleted())
	})
}

func TestUnsavedVolumeIsDeletedAndMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeProvisioner{}
		s := runWithProcess(t, newFakeAPI(newClass("fast")), failRequests("create persistentvolumes", 5, failBefore), p)
		claim := s.api.createClaim(t, newClaim("claim", "fast"))
		s.advance(41 * time.Second)
		require.Equal(t, []string{"pvc-" + string(claim.UID)}, p.deleted())
		events := withReason(s.drainEvents(), "Deleting the volume.")
		require.Len(t, events, 1)
		require.Contains(t, events[0], "Warning ProvisioningFailed Error creating provisioned PV object for claim ns/claim: ")
		require.NotEmpty(t, s.api.claim(t, "claim").Finalizers)
		s.advance(time.Minute)
		require.Equal(t, 2, p.callCount())
		require.Len(t, s.api.volumes(t), 1)
		s.api.bindAndRelease(t)
		synctest.Wait()
		require.Empty(t, s.api.claim(t, "claim").Finalizers)
	})
}

// The claim is left alone from when its volume is saved until it is bound: whoever binds it would fail and wait.
func TestNoWriteBeforeTheClaimIsBound(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		runSynctest(fmt.Sprint("deleted=", deleted), t, func(t *testing.T) {
			s := run(t, newFakeAPI(newClass("fast")), &fakeProvisioner{})
			s.api.createClaim(t, newClaim("claim", "fast"))
			s.advance(time.Hour)
			require.Len(t, s.api.volumes(t), 1)
			require.Equal(t, 1, s.api.writeCount("patch persistentvolumeclaims"), "the intent alone")
			if deleted {
				s.api.deleteClaim(t, "claim")
				synctest.Wait()
				require.Empty(t, s.api.claims(t), "a claim that is never bound must not be held back")
				return
			}
			s.api.bindAndRelease(t)
			synctest.Wait()
			require.Equal(t, 2, s.api.writeCount("patch persistentvolumeclaims"))
			require.Empty(t, s.api.claim(t, "claim").Finalizers)
		})
	}
}

func TestSavedVolumeIsNotDeletedBecauseResponsesWereLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeProvisioner{}
		s := runWithProcess(t, newFakeAPI(newClass("fast")), failRequests("create persistentvolumes", 100, failAfter), p,
			provision.CreateProvisionedPVBackoff(wait.Backoff{Duration: time.Second, Steps: 1}))
		s.api.createClaim(t, newClaim("claim", "fast"))
		s.advance(time.Hour)
		require.Empty(t, p.deleted())
		require.Len(t, s.api.volumes(t), 1)
		require.Equal(t, 1, p.callCount())
	})
}

func TestVolumeThatCannotBeCleanedIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeProvisioner{deleteErr: func(*corev1.PersistentVolume) error { return errors.New("busy") }}
		s := runWithProcess(t, newFakeAPI(newClass("fast")), failRequests("create persistentvolumes", 5, failBefore), p)
		s.api.createClaim(t, newClaim("claim", "fast"))
		s.advance(90 * time.Second)
		require.Len(t, p.deleted(), 5)
		require.Contains(t, withReason(s.drainEvents(), "ProvisioningCleanupFailed")[0], "Please delete manually.")
		s.api.deleteClaim(t, "claim")
		synctest.Wait()
		require.Len(t, s.api.volumes(t), 1, "the volume is handed over to the usual way of deletion")
		require.Empty(t, s.api.claims(t))
	})
}

func TestSaveWithLimiterNeverDeletes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeProvisioner{}
		s := runWithProcess(t, newFakeAPI(newClass("fast")), failRequests("create persistentvolumes", 50, failBefore), p,
			provision.CreateProvisionedPVLimiter(
				workqueue.NewTypedItemExponentialFailureRateLimiter[any](time.Second, time.Minute)))
		s.api.createClaim(t, newClaim("claim", "fast"))
		s.advance(30 * time.Minute)
		require.Empty(t, s.api.volumes(t))
		require.NotEmpty(t, withReason(s.drainEvents(), "Warning ProvisioningFailed Error saving"))
		require.NotEmpty(t, s.api.claim(t, "claim").Finalizers)
		requireCounts(t, s.ctrl, counts{})
		s.advance(30 * time.Minute)
		require.Len(t, s.api.volumes(t), 1)
		require.Equal(t, 1, p.callCount())
		require.Empty(t, p.deleted())
		labels := `{class="fast",source=""}`
		requireCounts(t, s.ctrl, counts{"persistentvolumeclaim_provision_total" + labels: 1,
			"persistentvolumeclaim_provision_duration_seconds" + labels: 1})
	})
}

// Whose storage the provisioner does not know needs no cleaning.
func TestIgnoredInTheCleanup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeProvisioner{deleteErr: func(*corev1.PersistentVolume) error { return &provision.IgnoredError{Reason: "not mine"} }}
		s := runWithProcess(t, newFakeAPI(newClass("fast")), failRequests("create persistentvolumes", 5, failBefore), p)
		s.api.createClaim(t, newClaim("claim", "fast"))
		s.advance(2 * time.Minute)
		require.Len(t, p.deleted(), 1)
		require.Empty(t, withReason(s.drainEvents(), "ProvisioningCleanupFailed"))
		require.Len(t, s.api.volumes(t), 1, "provisioned anew")
	})
}

func TestStoresWorkAlone(t *testing.T) {
	claim := newClaim("claim", "fast")
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "volume"}}
	runSynctest("backoff", t, func(t *testing.T) {
		api := newFakeAPI()
		store := provision.NewBackoffStore(api.client(failRequests("create persistentvolumes", 2, failBefore)), nil,
			&wait.Backoff{Duration: time.Minute, Factor: 1, Steps: 3}, nil)
		require.NoError(t, store.StoreVolume(claim, pv.DeepCopy()))
		require.Len(t, api.volumes(t), 1)
	})
	runSynctest("backoff gives up", t, func(t *testing.T) {
		api, p, events := newFakeAPI(), &fakeProvisioner{}, record.NewFakeRecorder(10)
		client := api.client(failRequests("create persistentvolumes", 100, failBefore))
		ctrl, err := provision.New(client, driverName, p)
		require.NoError(t, err)
		store := provision.NewBackoffStore(client, events, &wait.Backoff{Duration: time.Minute, Factor: 1, Steps: 3}, ctrl)
		require.Error(t, store.StoreVolume(claim, pv.DeepCopy()))
		require.Equal(t, []string{"volume"}, p.deleted())
		require.Contains(t, <-events.Events, "Deleting the volume.")
	})
	runSynctest("queue", t, func(t *testing.T) {
		api := newFakeAPI()
		store := provision.NewVolumeStoreQueue(api.client(failRequests("create persistentvolumes", 5, failBefore)),
			workqueue.NewTypedItemExponentialFailureRateLimiter[any](time.Second, time.Minute))
		require.NoError(t, store.StoreVolume(claim, pv.DeepCopy()), "before Run")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); store.Run(ctx, 2) }()
		time.Sleep(time.Minute) // the bubble's time
		synctest.Wait()
		require.Len(t, api.volumes(t), 1)
		cancel()
		<-done
	})
}
