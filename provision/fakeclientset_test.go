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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/provision"
)

// clientsets are client-go's own fakes, which give an object the same resourceVersion for ever.
var clientsets = map[string]func(...runtime.Object) kubernetes.Interface{
	"NewClientset":       func(objects ...runtime.Object) kubernetes.Interface { return fake.NewClientset(objects...) },
	"NewSimpleClientset": func(objects ...runtime.Object) kubernetes.Interface { return fake.NewSimpleClientset(objects...) },
}

// runOnClientset runs a controller on the client until the test ends.
func runOnClientset(t *testing.T, client kubernetes.Interface, p provision.Provisioner, options ...option) {
	t.Helper()
	ctrl, err := provision.New(client, driverName, p, append([]option{
		provision.LeaderElection(false), provision.EventRecorder(record.NewFakeRecorder(5000)),
	}, options...)...)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ctrl.RunContext(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	synctest.Wait()
}

// TestFakeClientset runs a controller as its users' unit tests do.
func TestFakeClientset(t *testing.T) {
	for name, newClient := range clientsets {
		runSynctest(name, t, func(t *testing.T) {
			p := &fakeProvisioner{}
			p.setProvisionErr(func(provision.VolumeOptions) error { return errors.New("disk full") })
			claim := newClaim("claim", "fast")
			claim.UID = "uid"
			client := newClient(newClass("fast"), claim)
			runOnClientset(t, client, p, provision.FailedProvisionThreshold(2), provision.ExponentialBackOffOnError(false),
				provision.ResyncPeriod(time.Hour))
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			require.Equal(t, 3, p.callCount(), "two retries, and none for the controller's own writes")

			time.Sleep(time.Hour)
			synctest.Wait()
			require.Equal(t, 4, p.callCount(), "a resync allows one more")

			p.setProvisionErr(nil)
			class := newClass("fast")
			class.AllowVolumeExpansion = ptr.To(true)
			_, err := client.StorageV1().StorageClasses().Update(t.Context(), class, metav1.UpdateOptions{})
			require.NoError(t, err)
			synctest.Wait()
			require.Equal(t, 5, p.callCount(), "a change of the class starts over")
			volumes, err := client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			require.Len(t, volumes.Items, 1)
		})
	}
}

// TestFakeClientsetDelete fails to delete a volume, whose events and finalizers the controller writes.
func TestFakeClientsetDelete(t *testing.T) {
	for name, newClient := range clientsets {
		runSynctest(name, t, func(t *testing.T) {
			p := &fakeProvisioner{deleteErr: func(*corev1.PersistentVolume) error { return errors.New("busy") }}
			volume := newVolume(provision.VolumeOptions{PVName: "disk", PVC: newClaim("claim", "fast")})
			volume.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": driverName}
			volume.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
			volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "claim", UID: "uid"}
			volume.Status.Phase = corev1.VolumeReleased
			runOnClientset(t, newClient(newClass("fast"), volume), p, provision.FailedDeleteThreshold(2),
				provision.ExponentialBackOffOnError(false), provision.ResyncPeriod(time.Hour))
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			require.Len(t, p.deleted(), 3, "two retries")
		})
	}
}

// TestRetryIntervalMax bounds the default backoff and that of a limiter of the caller's.
func TestRetryIntervalMax(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakeProvisioner{}
		p.setProvisionErr(func(provision.VolumeOptions) error { return errors.New("no") })
		s := run(t, newFakeAPI(newClass("fast")), p, provision.RetryIntervalMax(20*time.Second),
			provision.FailedProvisionThreshold(0), provision.ResyncPeriod(0))
		s.api.createClaim(t, newClaim("claim", "fast"))
		s.advance(10 * time.Minute)
		require.Equal(t, 1+1+29, p.callCount(), "the first retry after 15 s, the others every 20 s")
	})
}
