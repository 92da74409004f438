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

func TestVolumeIsExpandedWhileInUse(t *testing.T) {
	f := newDriverFixture(t)
	f.createUnattachedDriver()
	pv := f.createDriverClaim("v").DeepCopy()
	require.NoError(t, f.Mount(t.Context(), pod("a", claimVolume("data", "v"))))
	pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
	require.NoError(t, f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), pv, ""))
	f.stepUntil(time.Second, "grown", func() bool { return slices.Contains(f.driver.Calls(), "NodeExpandVolume v") })
	require.Contains(t, f.nextEvent(), "FileSystemResizeSuccessful")
	claim, err := f.client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "v", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "2Gi", claim.Status.Capacity.Storage().String())
	require.Equal(t, int64(2<<30), csifake.Last[*csipb.NodeExpandVolumeRequest](f.driver).CapacityRange.RequiredBytes)
	stats, err := f.Stats(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, map[string]volume.Stats{"data": {Capacity: 100, Available: 60, Used: 40, Inodes: 10, InodesFree: 7, InodesUsed: 3}}, stats)
	require.NoError(t, f.Unmount(t.Context(), "a"))
	f.requireUnstaged()
}

func TestVolumeIsExpandedAtOnceByAClaimEvent(t *testing.T) {
	f := newDriverFixture(t)
	f.createUnattachedDriver()
	source := &claimSource{}
	f.claims = source
	f.restart()
	pv := f.createDriverClaim("v").DeepCopy()
	require.NoError(t, f.Mount(t.Context(), pod("a", claimVolume("data", "v"))))
	require.False(t, f.clock.HasWaiters(), "nothing to resync")
	grow := func(size string) {
		pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
		require.NoError(t, f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), pv, ""))
		source.notify("ns", "v")
	}
	grow("2Gi")
	require.Contains(t, f.nextEvent(), "FileSystemResizeSuccessful", "the clock stands still: only the source can be the cause")
	require.Contains(t, f.nextEvent(), "FileSystemResizeSuccessful")

	source.notify("ns", "another") // is not used here
	f.driver.FailNext("NodeExpandVolume", csifake.Fault{Code: codes.Internal})
	grow("3Gi")
	require.Contains(t, f.nextEvent(), "FileSystemResizeFailed")
	f.step(time.Minute)
	require.Contains(t, f.nextEvent(), "FileSystemResizeSuccessful", "a failure is retried")
	require.Contains(t, f.nextEvent(), "FileSystemResizeSuccessful")
	f.eventually("nothing is resynced any more", func() bool { return !f.clock.HasWaiters() })

	require.NoError(t, f.Unmount(t.Context(), "a"))
	f.requireUnstaged()
	f.stop()
	require.Zero(t, source.subscribers())
	f.start()
}

func TestInlineVolumeIsPublishedAgainAndAgain(t *testing.T) {
	f := newDriverFixture(t)
	f.createUnattachedDriver(func(object *storagev1.CSIDriver) {
		object.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
		object.Spec.PodInfoOnMount, object.Spec.RequiresRepublish = ptr.To(true), ptr.To(true)
	})
	p := pod("a", vol("in", corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driverName}}))
	require.NoError(t, f.Supported(p))
	require.NoError(t, f.Mount(t.Context(), p))
	require.Len(t, f.driver.Calls(), 1, "an inline volume is not staged")
	request := csifake.Last[*csipb.NodePublishVolumeRequest](f.driver)
	require.Equal(t, "true", request.VolumeContext["csi.storage.k8s.io/ephemeral"])
	require.Equal(t, "a", request.VolumeContext["csi.storage.k8s.io/pod.uid"])
	f.driver.FailNext("NodePublishVolume", csifake.Fault{Code: codes.Internal})
	f.stepUntil(time.Second, "published again", func() bool { return len(f.driver.Calls()) > 2 })
	require.Equal(t, 1, f.driver.Published(), "a failure does not take the mount away")
	f.restart()
	require.NoError(t, f.Unmount(t.Context(), "a"))
	require.Zero(t, f.driver.Published())
	f.requireUnmounted("a")
}
