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

// failing returns a process in which so many of these requests fail, with this verdict.
func failing(what string, times int, v verdict) *process {
	var seen atomic.Int32
	return &process{kill: func() {}, fault: func(request string) verdict {
		if request == what && int(seen.Add(1)) <= times {
			return v
		}
		return pass
	}}
}

func only(events []string, reason string) []string {
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
		p := &simple{}
		s := runIn(t, newWorld(newClass("fast")), failing("create persistentvolumes", 4, failBefore), p)
		s.world.createClaim(t, newClaim("claim", "fast"))
		s.after(39 * time.Second)
		require.Empty(t, s.world.volumes(t))
		s.after(2 * time.Second)
		require.Len(t, s.world.volumes(t), 1)
		require.Equal(t, 1, p.count())
		require.Empty(t, p.deleted())
	})
}

func TestUnsavedVolumeIsDeletedAndMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &simple{}
		s := runIn(t, newWorld(newClass("fast")), failing("create persistentvolumes", 5, failBefore), p)
		claim := s.world.createClaim(t, newClaim("claim", "fast"))
		s.after(41 * time.Second)
		require.Equal(t, []string{"pvc-" + string(claim.UID)}, p.deleted())
		events := only(s.eventsSoFar(), "Deleting the volume.")
		require.Len(t, events, 1)
		require.Contains(t, events[0], "Warning ProvisioningFailed Error creating provisioned PV object for claim ns/claim: ")
		require.NotEmpty(t, s.world.claim(t, "claim").Finalizers)
		s.after(time.Minute)
		require.Equal(t, 2, p.count())
		require.Len(t, s.world.volumes(t), 1)
		s.world.step(t)
		synctest.Wait()
		require.Empty(t, s.world.claim(t, "claim").Finalizers)
	})
}

// The claim is left alone from when its volume is saved until it is bound: whoever binds it would fail and wait.
func TestNobodyIsInTheWayOfTheBinder(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		bubble(fmt.Sprint("deleted=", deleted), t, func(t *testing.T) {
			s := run(t, newWorld(newClass("fast")), &simple{})
			s.world.createClaim(t, newClaim("claim", "fast"))
			s.after(time.Hour)
			require.Len(t, s.world.volumes(t), 1)
			require.Equal(t, 1, s.world.written("patch persistentvolumeclaims"), "the intent alone")
			if deleted {
				s.world.deleteClaim(t, "claim")
				synctest.Wait()
				require.Empty(t, s.world.claims(t), "a claim that is never bound must not be held back")
				return
			}
			s.world.step(t)
			synctest.Wait()
			require.Equal(t, 2, s.world.written("patch persistentvolumeclaims"))
			require.Empty(t, s.world.claim(t, "claim").Finalizers)
		})
	}
}

func TestSavedVolumeIsNotDeletedBecauseAnswersWereLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &simple{}
		s := runIn(t, newWorld(newClass("fast")), failing("create persistentvolumes", 100, failAfter), p,
			provision.CreateProvisionedPVBackoff(wait.Backoff{Duration: time.Second, Steps: 1}))
		s.world.createClaim(t, newClaim("claim", "fast"))
		s.after(time.Hour)
		require.Empty(t, p.deleted())
		require.Len(t, s.world.volumes(t), 1)
		require.Equal(t, 1, p.count())
	})
}

func TestVolumeThatCannotBeCleanedIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &simple{delete: func(*corev1.PersistentVolume) error { return errors.New("busy") }}
		s := runIn(t, newWorld(newClass("fast")), failing("create persistentvolumes", 5, failBefore), p)
		s.world.createClaim(t, newClaim("claim", "fast"))
		s.after(90 * time.Second)
		require.Len(t, p.deleted(), 5)
		require.Contains(t, only(s.eventsSoFar(), "ProvisioningCleanupFailed")[0], "Please delete manually.")
		s.world.deleteClaim(t, "claim")
		synctest.Wait()
		require.Len(t, s.world.volumes(t), 1, "the volume is handed over to the usual way of deletion")
		require.Empty(t, s.world.claims(t))
	})
}

func TestSaveWithLimiterNeverDeletes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &simple{}
		s := runIn(t, newWorld(newClass("fast")), failing("create persistentvolumes", 50, failBefore), p,
			provision.CreateProvisionedPVLimiter(
				workqueue.NewTypedItemExponentialFailureRateLimiter[any](time.Second, time.Minute)))
		s.world.createClaim(t, newClaim("claim", "fast"))
		s.after(30 * time.Minute)
		require.Empty(t, s.world.volumes(t))
		require.NotEmpty(t, only(s.eventsSoFar(), "Warning ProvisioningFailed Error saving"))
		require.NotEmpty(t, s.world.claim(t, "claim").Finalizers)
		requireCounts(t, s.ctrl, counts{})
		s.after(30 * time.Minute)
		require.Len(t, s.world.volumes(t), 1)
		require.Equal(t, 1, p.count())
		require.Empty(t, p.deleted())
		labels := `{class="fast",source=""}`
		requireCounts(t, s.ctrl, counts{"persistentvolumeclaim_provision_total" + labels: 1,
			"persistentvolumeclaim_provision_duration_seconds" + labels: 1})
	})
}

// Whose storage the provisioner does not know needs no cleaning.
func TestIgnoredInTheCleanup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &simple{delete: func(*corev1.PersistentVolume) error { return &provision.IgnoredError{Reason: "not mine"} }}
		s := runIn(t, newWorld(newClass("fast")), failing("create persistentvolumes", 5, failBefore), p)
		s.world.createClaim(t, newClaim("claim", "fast"))
		s.after(2 * time.Minute)
		require.Len(t, p.deleted(), 1)
		require.Empty(t, only(s.eventsSoFar(), "ProvisioningCleanupFailed"))
		require.Len(t, s.world.volumes(t), 1, "provisioned anew")
	})
}

func TestStoresWorkAlone(t *testing.T) {
	claim := newClaim("claim", "fast")
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "volume"}}
	bubble("backoff", t, func(t *testing.T) {
		w := newWorld()
		store := provision.NewBackoffStore(w.client(failing("create persistentvolumes", 2, failBefore)), nil,
			&wait.Backoff{Duration: time.Minute, Factor: 1, Steps: 3}, nil)
		require.NoError(t, store.StoreVolume(claim, pv.DeepCopy()))
		require.Len(t, w.volumes(t), 1)
	})
	bubble("backoff gives up", t, func(t *testing.T) {
		w, p, events := newWorld(), &simple{}, record.NewFakeRecorder(10)
		client := w.client(failing("create persistentvolumes", 100, failBefore))
		ctrl, err := provision.New(client, driver, p)
		require.NoError(t, err)
		store := provision.NewBackoffStore(client, events, &wait.Backoff{Duration: time.Minute, Factor: 1, Steps: 3}, ctrl)
		require.Error(t, store.StoreVolume(claim, pv.DeepCopy()))
		require.Equal(t, []string{"volume"}, p.deleted())
		require.Contains(t, <-events.Events, "Deleting the volume.")
	})
	bubble("queue", t, func(t *testing.T) {
		w := newWorld()
		store := provision.NewVolumeStoreQueue(w.client(failing("create persistentvolumes", 5, failBefore)),
			workqueue.NewTypedItemExponentialFailureRateLimiter[any](time.Second, time.Minute))
		require.NoError(t, store.StoreVolume(claim, pv.DeepCopy()), "before Run")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); store.Run(ctx, 2) }()
		time.Sleep(time.Minute) // the bubble's time
		synctest.Wait()
		require.Len(t, w.volumes(t), 1)
		cancel()
		<-done
	})
}
