package provision_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"

	"github.com/berth-dev/berth/provision"
)

// What is skipped is neither a success nor a failure.
func TestWhatIsLeftAloneIsNotCounted(t *testing.T) {
	ignore := func(provision.VolumeOptions) error { return &provision.IgnoredError{Reason: "not mine"} }
	foreign := newClass("foreign")
	foreign.Provisioner = "example.com/other"
	for name, test := range map[string]struct {
		class  string
		change func(*corev1.PersistentVolumeClaim)
	}{
		"ignored":       {"fast", func(*corev1.PersistentVolumeClaim) {}},
		"foreign class": {"foreign", func(*corev1.PersistentVolumeClaim) {}},
		"block": {"fast", func(c *corev1.PersistentVolumeClaim) {
			mode := corev1.PersistentVolumeBlock
			c.Spec.VolumeMode = &mode
		}},
		"made by hand": {"fast", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "mine" }},
		"there before": {"fast", func(c *corev1.PersistentVolumeClaim) { c.UID = "there" }},
	} {
		runSynctest(name, t, func(t *testing.T) {
			there := released("pvc-there")
			there.Spec.ClaimRef.UID, there.Status.Phase = "there", corev1.VolumeBound
			claim := newClaim("claim", test.class)
			test.change(claim)
			p := &fakeProvisioner{provisionErr: ignore}
			s := run(t, newFakeAPI(newClass("fast"), foreign, there), p, provision.ResyncPeriod(0))
			s.api.createClaim(t, claim)
			s.advance(time.Hour)
			requireCounts(t, s.ctrl, counts{})
			require.Equal(t, name == "ignored", p.callCount() == 1)
		})
	}
}

// A deletion counts once, when the storage is gone: not while the volume cannot be read, and not again because the
// object cannot be deleted.
func TestDeletionIsCountedWhenItIsDone(t *testing.T) {
	for _, what := range []string{"get persistentvolumes", "delete persistentvolumes"} {
		runSynctest(what, t, func(t *testing.T) {
			p := &fakeProvisioner{}
			s := runWithProcess(t, newFakeAPI(released("volume")), failRequests(what, 3, failBefore), p)
			if what == "get persistentvolumes" {
				require.Empty(t, p.deleted(), "an error of the API is not the volume's absence")
				requireCounts(t, s.ctrl, counts{})
			}
			s.advance(time.Minute)
			require.Equal(t, []string{"volume"}, p.deleted(), "the storage is deleted once")
			require.Empty(t, s.api.volumes(t))
			requireCounts(t, s.ctrl, counts{
				`persistentvolume_delete_total{class="fast"}`: 1, `persistentvolume_delete_duration_seconds{class="fast"}`: 1})
		})
	}
}

// A volume that went between the watch and the call is not counted as deleted, nor is one that was taken back.
func TestDeletedVolumeIsNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI(released("volume"))
		p := &fakeProvisioner{}
		process := &process{kill: func() {}, nextFault: func(what string) fault {
			if what == "get persistentvolumes" {
				err := api.tracker.Delete(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), "", "volume")
				require.NoError(t, err)
			}
			return noFault
		}}
		s := runWithProcess(t, api, process, p)
		s.advance(time.Minute)
		require.Empty(t, p.deleted())
		requireCounts(t, s.ctrl, counts{})
	})
}

// The class that counts is the one in use: the old annotation comes before the field.
func TestMetricsNameTheClassInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, newFakeAPI(newClass("fast")), &fakeProvisioner{})
		claim := newClaim("claim", "missing")
		claim.Annotations["volume.beta.kubernetes.io/storage-class"] = "fast"
		s.api.createClaim(t, claim)
		synctest.Wait()
		require.Equal(t, 1.0, gather(t, s.ctrl.MetricsGatherer())[`persistentvolumeclaim_provision_total{class="fast",source=""}`])
	})
}

// The waits between calls are 15 s, 30 s and so on to 1000 s; an answer of the API is no call and waits for itself.
func TestBackoffDoublesToItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Time
		p := &fakeProvisioner{provisionErr: func(provision.VolumeOptions) error {
			at = append(at, time.Now())
			return errors.New("no")
		}}
		s := run(t, newFakeAPI(newClass("fast")), p, provision.ResyncPeriod(0))
		s.api.createClaim(t, newClaim("claim", "fast"))
		s.advance(24 * time.Hour)
		require.Len(t, at, 16, "one call and fifteen retries")
		want := 15 * time.Second
		for i := range at[1:] {
			require.InDelta(t, min(want, 1000*time.Second), at[i+1].Sub(at[i]), float64(time.Second))
			want *= 2
		}
	})
}

// Who has given up, succeeded or gone leaves no count of failures behind.
func TestFailuresAreForgotten(t *testing.T) {
	for _, end := range []string{"given up", "succeeded", "gone"} {
		runSynctest(end, t, func(t *testing.T) {
			limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[any](time.Second, time.Minute)
			p := &fakeProvisioner{provisionErr: func(provision.VolumeOptions) error { return errors.New("no") }}
			s := run(t, newFakeAPI(newClass("fast")), p, provision.RateLimiter(limiter),
				provision.FailedProvisionThreshold(3), provision.ResyncPeriod(0))
			claim := s.api.createClaim(t, newClaim("claim", "fast"))
			s.advance(1500 * time.Millisecond)
			require.Equal(t, 2, limiter.NumRequeues(string(claim.UID)))
			switch end {
			case "succeeded":
				p.setProvisionErr(nil)
			case "gone":
				s.api.deleteClaim(t, "claim")
			}
			s.advance(time.Hour)
			require.Zero(t, limiter.NumRequeues(string(claim.UID)))
		})
	}
}

// Volumes that cannot be deleted do not use up what lets claims be tried again.
func TestDeletionsDoNotDelayClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI(newClass("fast"))
		for i := range 1000 {
			pv := released(fmt.Sprint("volume", i))
			require.NoError(t, api.tracker.Add(pv))
		}
		p := &fakeProvisioner{deleteErr: func(*corev1.PersistentVolume) error { return errors.New("busy") }}
		p.setProvisionErr(func(provision.VolumeOptions) error {
			p.setProvisionErr(nil)
			return errors.New("once")
		})
		s := run(t, api, p)
		s.api.createClaim(t, newClaim("claim", "fast"))
		s.advance(16 * time.Second)
		require.Equal(t, 2, p.callCount())
	})
}

// Without a namespace given, the Lease is in the Pod's; it and the events say which process it is.
func TestNamesOfTheProcess(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "mine")
	host, err := os.Hostname()
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI(newClass("fast"))
		ctrl, err := provision.New(api.client(nil), driverName, &fakeProvisioner{})
		require.NoError(t, err)
		stop, done := make(chan struct{}), make(chan struct{})
		go func() { defer close(done); ctrl.Run(stop) }()
		synctest.Wait()
		lease, err := api.client(nil).CoordinationV1().Leases("mine").Get(t.Context(), strings.ReplaceAll(driverName, "/", "-"), metav1.GetOptions{})
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(*lease.Spec.HolderIdentity, host+"_"), *lease.Spec.HolderIdentity)
		api.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		api.bindAndRelease(t)
		synctest.Wait()
		events, err := api.client(nil).CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.NotEmpty(t, events.Items)
		require.Equal(t, driverName+"_"+*lease.Spec.HolderIdentity, events.Items[0].Source.Component)
		close(stop)
		<-done
	})
}
