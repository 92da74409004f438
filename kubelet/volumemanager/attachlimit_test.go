package volumemanager_test

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/volume"
)

// failAttach reports a failed attach, as an attacher does.
func (f *fixture) failAttach(handle string, code codes.Code, message string) {
	f.t.Helper()
	sum := sha256.Sum256([]byte(handle + driverName + "here"))
	f.create(&storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("csi-%x", sum)},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: driverName, NodeName: "here"},
		Status: storagev1.VolumeAttachmentStatus{
			AttachError: &storagev1.VolumeError{Message: message, ErrorCode: ptr.To(int32(code))}},
	})
}

// waitInUse returns when the volume waits for nothing but its attachment.
func (f *fixture) waitInUse(handle string) {
	f.t.Helper()
	f.eventually("in use", func() bool { return len(f.status.list()) == 1 && f.status.list()[0] == uniqueName(handle) })
}

func TestAttachLimitRefusesThePod(t *testing.T) {
	f := newDriverFixture(t)
	f.create(&storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driverName},
		Spec:       storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: ptr.To(int64(10))},
	})
	f.restart()
	f.createDriverClaim("v")
	done := f.startMount(pod("a", claimVolume("data", "v"), emptyDir("scratch")))
	f.waitInUse("v")
	f.failAttach("v", codes.ResourceExhausted, "25 volumes are attached already")
	f.stepUntil(time.Second, "polled again", func() bool { return len(done) == 1 })
	err := f.result(done)
	require.True(t, volume.IsAttachLimitExceeded(err), "%v", err)
	require.ErrorContains(t, err, `attach volume "pv-v": csi driver fake.csi.test: 25 volumes are attached already`)
	require.Equal(t, driverName, <-f.overAttachLimit, "the driver's limit must be read again")
	require.Contains(t, f.nextEvent(), "25 volumes are attached already")
	require.NoError(t, f.Unmount(t.Context(), "a"))
	f.requireUnstaged()
}

// TestFailedAttachIsRetried: the same failure of a driver that does not want Pods to be refused, and another failure
// of one that does.
func TestFailedAttachIsRetried(t *testing.T) {
	for name, test := range map[string]struct {
		code   codes.Code
		period *int64
	}{
		"full, but it does not say that this is final": {codes.ResourceExhausted, nil},
		"another failure": {codes.Internal, ptr.To(int64(10))},
	} {
		t.Run(name, func(t *testing.T) {
			f := newDriverFixture(t)
			f.create(&storagev1.CSIDriver{
				ObjectMeta: metav1.ObjectMeta{Name: driverName},
				Spec:       storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: test.period},
			})
			f.restart()
			f.createDriverClaim("v")
			p := pod("a", claimVolume("data", "v"))
			done := f.startMount(p)
			f.waitInUse("v")
			f.failAttach("v", test.code, "no")
			polls := func() int {
				count := 0
				for _, action := range f.client.Actions() {
					if action.Matches("get", "volumeattachments") {
						count++
					}
				}
				return count
			}
			for i := range 3 {
				f.stepUntil(time.Second, "polled again", func() bool { return polls() > i })
			}
			require.Empty(t, f.overAttachLimit)
			node := newNode()
			node.Status.VolumesAttached = []corev1.AttachedVolume{{Name: uniqueName("v")}}
			resource := storagev1.SchemeGroupVersion.WithResource("volumeattachments")
			list, err := f.client.StorageV1().VolumeAttachments().List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			attachment := list.Items[0].DeepCopy()
			attachment.Status = storagev1.VolumeAttachmentStatus{Attached: true}
			require.NoError(t, f.client.Tracker().Update(resource, attachment, ""))
			f.NodeChanged(node)
			require.NoError(t, f.result(done), "in the end it is attached")
			require.NoError(t, f.Unmount(t.Context(), "a"))
			f.requireUnstaged()
		})
	}
}
