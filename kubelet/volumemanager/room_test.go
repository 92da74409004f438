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

// failAttach does what an attacher does that fails.
func (w *world) failAttach(handle string, code codes.Code, message string) {
	w.t.Helper()
	sum := sha256.Sum256([]byte(handle + driverName + "here"))
	w.create(&storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("csi-%x", sum)},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: driverName, NodeName: "here"},
		Status: storagev1.VolumeAttachmentStatus{
			AttachError: &storagev1.VolumeError{Message: message, ErrorCode: ptr.To(int32(code))}},
	})
}

// awaitInUse returns when the volume waits for nothing but its attachment.
func (w *world) awaitInUse(handle string) {
	w.t.Helper()
	w.await("in use", func() bool { return len(w.status.list()) == 1 && w.status.list()[0] == unique(handle) })
}

func TestNodeWithoutRoomRefusesThePod(t *testing.T) {
	w := deviceWorld(t)
	w.create(&storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driverName},
		Spec:       storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: ptr.To(int64(10))},
	})
	w.restart()
	w.device("v")
	done := w.mounting(pod("a", claimVolume("data", "v"), emptyDir("scratch")))
	w.awaitInUse("v")
	w.failAttach("v", codes.ResourceExhausted, "25 volumes are attached already")
	w.stepUntil(time.Second, "asked again", func() bool { return len(done) == 1 })
	err := w.result(done)
	require.True(t, volume.IsAttachLimitExceeded(err), "%v", err)
	require.ErrorContains(t, err, `attach volume "pv-v": csi driver fake.csi.test: 25 volumes are attached already`)
	require.Equal(t, driverName, <-w.full, "the driver's limit is out of date")
	require.Contains(t, w.nextEvent(), "25 volumes are attached already")
	require.NoError(t, w.Unmount(t.Context(), "a"))
	w.allGone()
}

// TestAttachThatFailsIsWaitedFor: the same failure of a driver that does not want Pods to be refused, and another failure
// of one that does.
func TestAttachThatFailsIsWaitedFor(t *testing.T) {
	for name, test := range map[string]struct {
		code   codes.Code
		period *int64
	}{
		"full, but it does not say that this is final": {codes.ResourceExhausted, nil},
		"another failure": {codes.Internal, ptr.To(int64(10))},
	} {
		t.Run(name, func(t *testing.T) {
			w := deviceWorld(t)
			w.create(&storagev1.CSIDriver{
				ObjectMeta: metav1.ObjectMeta{Name: driverName},
				Spec:       storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: test.period},
			})
			w.restart()
			w.device("v")
			p := pod("a", claimVolume("data", "v"))
			done := w.mounting(p)
			w.awaitInUse("v")
			w.failAttach("v", test.code, "no")
			asked := func() int {
				count := 0
				for _, action := range w.client.Actions() {
					if action.Matches("get", "volumeattachments") {
						count++
					}
				}
				return count
			}
			for i := range 3 {
				w.stepUntil(time.Second, "asked again", func() bool { return asked() > i })
			}
			require.Empty(t, w.full)
			node := hereNode()
			node.Status.VolumesAttached = []corev1.AttachedVolume{{Name: unique("v")}}
			resource := storagev1.SchemeGroupVersion.WithResource("volumeattachments")
			list, err := w.client.StorageV1().VolumeAttachments().List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			attachment := list.Items[0].DeepCopy()
			attachment.Status = storagev1.VolumeAttachmentStatus{Attached: true}
			require.NoError(t, w.client.Tracker().Update(resource, attachment, ""))
			w.NodeChanged(node)
			require.NoError(t, w.result(done), "in the end it is attached")
			require.NoError(t, w.Unmount(t.Context(), "a"))
			w.allGone()
		})
	}
}
