package volumemanager_test

import (
	"slices"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/volume"
	csifake "github.com/berth-dev/berth/volume/csi/fake"
)

func TestVolumeGrowsWhileInUse(t *testing.T) {
	w := deviceWorld(t)
	w.noAttach()
	pv := w.device("v").DeepCopy()
	require.NoError(t, w.Mount(t.Context(), pod("a", claimVolume("data", "v"))))
	pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
	require.NoError(t, w.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), pv, ""))
	w.stepUntil(time.Second, "grown", func() bool { return slices.Contains(w.driver.Calls(), "NodeExpandVolume v") })
	require.Contains(t, w.nextEvent(), "FileSystemResizeSuccessful")
	claim, err := w.client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "v", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "2Gi", claim.Status.Capacity.Storage().String())
	require.Equal(t, int64(2<<30), csifake.Last[*csipb.NodeExpandVolumeRequest](w.driver).CapacityRange.RequiredBytes)
	stats, err := w.Stats(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, map[string]volume.Stats{"data": {Capacity: 100, Available: 60, Used: 40, Inodes: 10, InodesFree: 7, InodesUsed: 3}}, stats)
	require.NoError(t, w.Unmount(t.Context(), "a"))
	w.allGone()
}

func TestVolumeGrowsAtOnceWhereClaimsAreTold(t *testing.T) {
	w := deviceWorld(t)
	w.noAttach()
	source := &claimSource{}
	w.claims = source
	w.restart()
	pv := w.device("v").DeepCopy()
	require.NoError(t, w.Mount(t.Context(), pod("a", claimVolume("data", "v"))))
	require.False(t, w.clock.HasWaiters(), "nothing to look at now and then")
	grow := func(size string) {
		pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
		require.NoError(t, w.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), pv, ""))
		source.tell("ns", "v")
	}
	grow("2Gi")
	require.Contains(t, w.nextEvent(), "FileSystemResizeSuccessful", "the clock stands still: only the source can be the cause")
	require.Contains(t, w.nextEvent(), "FileSystemResizeSuccessful")

	source.tell("ns", "another") // is nobody's here
	w.driver.FailNext("NodeExpandVolume", csifake.Fault{Code: codes.Internal})
	grow("3Gi")
	require.Contains(t, w.nextEvent(), "FileSystemResizeFailed")
	w.step(time.Minute)
	require.Contains(t, w.nextEvent(), "FileSystemResizeSuccessful", "what failed is tried again")
	require.Contains(t, w.nextEvent(), "FileSystemResizeSuccessful")
	w.await("nothing is looked at any more", func() bool { return !w.clock.HasWaiters() })

	require.NoError(t, w.Unmount(t.Context(), "a"))
	w.allGone()
	w.stop()
	require.Zero(t, source.subscribers())
	w.start()
}

func TestInlineVolumeIsPublishedAgainAndAgain(t *testing.T) {
	w := deviceWorld(t)
	w.noAttach(func(object *storagev1.CSIDriver) {
		object.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
		object.Spec.PodInfoOnMount, object.Spec.RequiresRepublish = ptr.To(true), ptr.To(true)
	})
	p := pod("a", vol("in", corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driverName}}))
	require.NoError(t, w.Supported(p))
	require.NoError(t, w.Mount(t.Context(), p))
	require.Len(t, w.driver.Calls(), 1, "an inline volume is not staged")
	request := csifake.Last[*csipb.NodePublishVolumeRequest](w.driver)
	require.Equal(t, "true", request.VolumeContext["csi.storage.k8s.io/ephemeral"])
	require.Equal(t, "a", request.VolumeContext["csi.storage.k8s.io/pod.uid"])
	w.driver.FailNext("NodePublishVolume", csifake.Fault{Code: codes.Internal})
	w.stepUntil(time.Second, "published again", func() bool { return len(w.driver.Calls()) > 2 })
	require.Equal(t, 1, w.driver.Published(), "a failure does not take the mount away")
	w.restart()
	require.NoError(t, w.Unmount(t.Context(), "a"))
	require.Zero(t, w.driver.Published())
	w.gone("a")
}
