package provision_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/provision"
)

const pvFinalizer = "external-provisioner.volume.kubernetes.io/finalizer"

// released is a volume of the driver whose claim is gone.
func released(name string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: "uid-of-" + "volume",
			Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": driverName},
		},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			StorageClassName:              "fast",
			ClaimRef:                      &corev1.ObjectReference{Namespace: "ns", Name: "claim", UID: "gone"},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeReleased},
	}
}

type guardedProvisioner struct{ fakeProvisioner }

func (*guardedProvisioner) ShouldDelete(pv *corev1.PersistentVolume) bool {
	return pv.Labels["keep"] == ""
}

func TestWhichVolumesAreDeleted(t *testing.T) {
	now := metav1.Now()
	for name, test := range map[string]struct {
		change  func(*corev1.PersistentVolume)
		deleted bool
	}{
		"released": {func(*corev1.PersistentVolume) {}, true},
		"bound":    {func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeBound }, false},
		"failed":   {func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeFailed }, false},
		"retained": {func(pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}, false},
		"foreign": {func(pv *corev1.PersistentVolume) { pv.Annotations["pv.kubernetes.io/provisioned-by"] = "other" }, false},
		"by hand": {func(pv *corev1.PersistentVolume) { pv.Annotations = nil }, false},
		"by hand, of our driver": {func(pv *corev1.PersistentVolume) {
			pv.Annotations, pv.Spec.CSI = nil, &corev1.CSIPersistentVolumeSource{Driver: driverName}
		}, true},
		"by hand, of another driver": {func(pv *corev1.PersistentVolume) {
			pv.Annotations, pv.Spec.CSI = nil, &corev1.CSIPersistentVolumeSource{Driver: "other"}
		}, false},
		"of another provisioner for our driver": {func(pv *corev1.PersistentVolume) {
			pv.Annotations["pv.kubernetes.io/provisioned-by"] = "other"
			pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driverName}
		}, false},
		"additional": {func(pv *corev1.PersistentVolume) {
			pv.Annotations["pv.kubernetes.io/provisioned-by"] = "example.com/old"
		}, true},
		"guarded": {func(pv *corev1.PersistentVolume) { pv.Labels = map[string]string{"keep": "yes"} }, false},
		"going, ours": {func(pv *corev1.PersistentVolume) {
			pv.DeletionTimestamp, pv.Finalizers = &now, []string{"other/one", pvFinalizer}
		}, true},
		"going, not ours": {func(pv *corev1.PersistentVolume) {
			pv.DeletionTimestamp, pv.Finalizers = &now, []string{"other/one"}
		}, false},
	} {
		runSynctest(name, t, func(t *testing.T) {
			pv := released("volume")
			test.change(pv)
			p := &guardedProvisioner{}
			s := run(t, newFakeAPI(pv), p, provision.AdditionalProvisionerNames([]string{"example.com/old"}))
			s.advance(time.Hour)
			if !test.deleted {
				require.Empty(t, p.deleted())
				require.Len(t, s.api.volumes(t), 1)
				return
			}
			require.Equal(t, []string{"volume"}, p.deleted(), "exactly one call")
			left := s.api.volumes(t)
			if name == "going, ours" {
				require.Equal(t, []string{"other/one"}, left[0].Finalizers, "others' finalizers stay")
				return
			}
			require.Empty(t, left)
		})
	}
}

func TestFailedDeleteIsReportedAndRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeProvisioner{deleteErr: func(*corev1.PersistentVolume) error { return errors.New("still in use") }}
		s := run(t, newFakeAPI(released("volume")), p, provision.FailedDeleteThreshold(2),
			provision.ExponentialBackOffOnError(false), provision.ResyncPeriod(time.Hour))
		s.advance(30 * time.Minute)
		require.Len(t, p.deleted(), 3)
		events := s.drainEvents()
		require.Equal(t, "Warning VolumeFailedDelete still in use", events[0])
		require.Contains(t, events[len(events)-1], "gave up deleting after 2 retries")
		s.advance(time.Hour)
		require.Len(t, p.deleted(), 4, "a resync allows one more")
		requireCounts(t, s.ctrl, counts{`persistentvolume_delete_failed_total{class="fast"}`: 4})
	})
}

func TestIgnoredDeleteLeavesTheVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeProvisioner{deleteErr: func(*corev1.PersistentVolume) error { return &provision.IgnoredError{Reason: "other node"} }}
		s := run(t, newFakeAPI(released("volume")), p, provision.ResyncPeriod(0))
		s.advance(time.Hour)
		require.Len(t, p.deleted(), 1)
		require.Len(t, s.api.volumes(t), 1)
		require.Empty(t, s.drainEvents())
		requireCounts(t, s.ctrl, counts{})
	})
}

func TestVolumeFinalizerFollowsThePolicy(t *testing.T) {
	for name, test := range map[string]struct {
		policy corev1.PersistentVolumeReclaimPolicy
		have   []string
		on     bool
		want   []string
	}{
		"added":           {corev1.PersistentVolumeReclaimDelete, nil, true, []string{pvFinalizer}},
		"stays":           {corev1.PersistentVolumeReclaimDelete, []string{pvFinalizer}, true, []string{pvFinalizer}},
		"retain":          {corev1.PersistentVolumeReclaimRetain, []string{"a/b", pvFinalizer}, true, []string{"a/b"}},
		"recycle":         {corev1.PersistentVolumeReclaimRecycle, []string{pvFinalizer}, true, nil},
		"off":             {corev1.PersistentVolumeReclaimDelete, []string{pvFinalizer}, false, nil},
		"never on retain": {corev1.PersistentVolumeReclaimRetain, nil, true, nil},
	} {
		runSynctest(name, t, func(t *testing.T) {
			pv := released("volume")
			pv.Status.Phase, pv.Spec.PersistentVolumeReclaimPolicy, pv.Finalizers = corev1.VolumeBound, test.policy, test.have
			s := run(t, newFakeAPI(pv), &fakeProvisioner{}, provision.AddFinalizer(test.on))
			require.ElementsMatch(t, test.want, s.api.volumes(t)[0].Finalizers)
		})
	}
}

// A volume that is deleted before its claim keeps its storage until the claim is deleted.
func TestVolumeDeletedBeforeItsClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeProvisioner{}
		s := run(t, newFakeAPI(newClass("fast")), p)
		s.api.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		s.api.bindAndRelease(t)
		name := s.api.volumes(t)[0].Name
		require.NoError(t, s.api.client(nil).CoreV1().PersistentVolumes().Delete(t.Context(), name, metav1.DeleteOptions{}))
		s.advance(time.Minute)
		require.Empty(t, p.deleted())
		s.api.deleteClaim(t, "claim")
		s.api.bindAndRelease(t)
		synctest.Wait()
		require.Equal(t, []string{name}, p.deleted())
		require.Empty(t, s.api.volumes(t))
	})
}

// notifyingProvisioner notifies of the volumes that its test sends.
type notifyingProvisioner struct {
	fakeProvisioner
	deletable chan string
}

func (p *notifyingProvisioner) NotifyDeletable(ctx context.Context, notify func(volume string)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case name := <-p.deletable:
			notify(name)
		}
	}
}

// A deletion that failed is tried again, without waiting, when the provisioner says so: also if it says so while the
// deletion is being refused, and after it was given up.
func TestNotifiedDeletionDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &notifyingProvisioner{deletable: make(chan string)}
		answers := []error{errors.New("attached"), errors.New("attached"), nil}
		p.deleteErr = func(*corev1.PersistentVolume) error {
			answer := answers[0]
			if answers = answers[1:]; len(answers) == 1 {
				p.deletable <- "volume" // detached while the deletion fails
			}
			return answer
		}
		s := run(t, newFakeAPI(released("volume")), p, provision.FailedDeleteThreshold(1), provision.ResyncPeriod(0))
		p.deletable <- "unknown"
		synctest.Wait()
		require.Len(t, p.deleted(), 1)
		p.deletable <- "volume"
		synctest.Wait()
		require.Empty(t, answers, "no time has passed")
		require.Empty(t, s.api.volumes(t))
	})
}

// A deletion that fails again after it was woken is tried again when the longer backoff is over, although the shorter one
// was planned before.
func TestNotifiedDeletionThatFailsIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &notifyingProvisioner{deletable: make(chan string)}
		answers := make(chan error, 3)
		answers <- errors.New("attached")
		answers <- errors.New("answer lost")
		answers <- nil
		p.deleteErr = func(*corev1.PersistentVolume) error { return <-answers }
		s := run(t, newFakeAPI(released("volume")), p, provision.ResyncPeriod(0))
		synctest.Wait()
		p.deletable <- "volume"
		synctest.Wait()
		require.Len(t, answers, 1)
		time.Sleep(16 * time.Second) // the backoff after the first failure, which counts no more
		synctest.Wait()
		require.Len(t, answers, 1)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		require.Empty(t, answers)
		require.Empty(t, s.api.volumes(t))
	})
}

// A Provisioner that cannot wake any more stops nothing else.
func TestNotifierMayEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, newFakeAPI(released("volume")), &failingNotifier{})
		synctest.Wait()
		require.Empty(t, s.api.volumes(t))
	})
}

type failingNotifier struct{ fakeProvisioner }

func (*failingNotifier) NotifyDeletable(context.Context, func(string)) error {
	return errors.New("no such resource")
}

// What the provisioner will not delete must not get a finalizer that only its deletion would remove.
func TestGuardedVolumeGetsNoFinalizer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pv := released("volume")
		pv.Status.Phase, pv.Labels = corev1.VolumeBound, map[string]string{"keep": "yes"}
		s := run(t, newFakeAPI(pv), &guardedProvisioner{}, provision.AddFinalizer(true))
		require.Empty(t, s.api.volumes(t)[0].Finalizers)
	})
}
