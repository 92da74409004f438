package volumemanager_test

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/csi"
	csifake "github.com/berth-dev/berth/volume/csi/fake"
	"github.com/berth-dev/berth/volume/mounts"
)

func TestDeviceIsUsedOnlyAfterTheHandshake(t *testing.T) {
	f := newDriverFixture(t)
	f.createDriverClaim("v")
	release := f.status.blockWrites()
	p := pod("a", claimVolume("data", "v"))
	p.Spec.SecurityContext = &corev1.PodSecurityContext{}
	f.attach("v") // attached from before, perhaps being detached
	done := f.startMount(p)
	f.eventually("the Pod waits for the attachment", func() bool {
		record, _ := f.timeline.Record("a")
		for _, stage := range record.Stages {
			if stage.Name == "AttachVolume" {
				return true
			}
		}
		return false
	})
	require.Empty(t, f.driver.Calls(), "no call may be made before the API server has stored that it is in use")
	f.NodeChanged(newNode())
	release()
	f.eventually("in use", func() bool { return slices.Equal(f.status.list(), []corev1.UniqueVolumeName{uniqueName("v")}) })
	require.Empty(t, f.driver.Calls(), "no call may be made before the volume is attached")
	f.attach("v")
	require.NoError(t, f.result(done))
	require.Equal(t, []string{"NodeStageVolume v", "NodePublishVolume v"}, f.driver.Calls())
	stage, publish := csifake.Last[*csipb.NodeStageVolumeRequest](f.driver), csifake.Last[*csipb.NodePublishVolumeRequest](f.driver)
	require.Equal(t, map[string]string{"lun": "v"}, stage.PublishContext)
	require.Equal(t, map[string]string{"lun": "v"}, publish.PublishContext)
	require.Equal(t, stage.StagingTargetPath, publish.StagingTargetPath)
	require.Equal(t, filepath.Join(volume.Dir(f.root, "a", csi.Name, "pv-v"), "mount"), f.Volumes("a")["data"].Path)

	f.driver.FailNext("NodeUnstageVolume", csifake.Fault{Code: codes.Internal})
	require.NoError(t, f.Unmount(t.Context(), "a"))
	f.requireUnmounted("a")
	f.eventually("the unstaging failed", func() bool { return slices.Contains(f.driver.Calls(), "NodeUnstageVolume v") })
	require.Len(t, f.status.list(), 1, "a volume is in use until it is unstaged")
	f.stepUntil(100*time.Millisecond, "unstaged", func() bool { return f.driver.Staged() == 0 })
	f.requireUnstaged()
}

func TestDeviceIsStagedOnceForAllItsPods(t *testing.T) {
	f := newDriverFixture(t)
	f.createUnattachedDriver()
	f.createDriverClaim("v")
	var wg sync.WaitGroup
	for _, uid := range []types.UID{"a", "b", "c"} {
		wg.Go(func() {
			if err := f.Mount(t.Context(), pod(uid, claimVolume("data", "v"))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, os.WriteFile(filepath.Join(f.Volumes("a")["data"].Path, "f"), []byte("x"), 0o644))
	require.Equal(t, "x", f.readFile("b", "data", "f"))
	require.NoError(t, f.Unmount(t.Context(), "a"))
	require.NoError(t, f.Unmount(t.Context(), "b"))
	require.Equal(t, 1, f.driver.Staged())
	require.Empty(t, f.status.list(), "what needs no attachment is not in use")
	require.NoError(t, f.Unmount(t.Context(), "c"))
	f.requireUnstaged()
	count := map[string]int{}
	for _, call := range f.driver.Calls() {
		count[call]++
	}
	require.Equal(t, map[string]int{
		"NodeStageVolume v": 1, "NodePublishVolume v": 3, "NodeUnpublishVolume v": 3, "NodeUnstageVolume v": 1,
	}, count)
}

func TestNewProcessTakesDevicesOver(t *testing.T) {
	f := newDriverFixture(t)
	for _, name := range []string{"keep", "drop"} {
		f.createDriverClaim(name)
	}
	f.attach("keep", "drop")
	require.NoError(t, f.Mount(t.Context(), pod("a", claimVolume("data", "keep"))))
	require.NoError(t, f.Mount(t.Context(), pod("b", claimVolume("data", "drop"))))
	require.NoError(t, os.WriteFile(filepath.Join(f.Volumes("a")["data"].Path, "f"), []byte("x"), 0o644))
	before, err := mounts.ListBelow(f.root)
	require.NoError(t, err)

	f.restart()
	f.eventually("what is on disk is in use", func() bool { return len(f.status.list()) == 2 })
	f.attach("keep", "drop")
	require.NoError(t, f.Mount(t.Context(), pod("a", claimVolume("data", "keep"))))
	require.Equal(t, "x", f.readFile("a", "data", "f"))
	again, err := mounts.ListBelow(f.root)
	require.NoError(t, err)
	require.Equal(t, before, again)
	require.Equal(t, 2, f.driver.Staged(), "nothing is unstaged before the Pods are known")
	require.NoError(t, f.CleanupOrphans(t.Context(), func(uid types.UID) bool { return uid == "a" }))
	f.eventually("the other is gone", func() bool { return f.driver.Staged() == 1 && len(f.status.list()) == 1 })
	require.NoError(t, f.Unmount(t.Context(), "a"))
	f.requireUnstaged()
	require.FileExists(t, filepath.Join(f.driver.Config.Dir, "data/keep/f"))
}

func TestStagedDeviceWithoutPodIsUnstagedAfterARestart(t *testing.T) {
	f := newDriverFixture(t)
	f.createUnattachedDriver()
	f.createDriverClaim("v")
	f.driver.Plan(func(call, _ string) csifake.Fault {
		if call == "NodeUnstageVolume" {
			return csifake.Fault{Code: codes.Unavailable}
		}
		return csifake.Fault{}
	})
	require.NoError(t, f.Mount(t.Context(), pod("a", claimVolume("data", "v"))))
	require.NoError(t, f.Unmount(t.Context(), "a"))
	f.driver.Plan(nil)
	f.restart()
	require.NoError(t, f.CleanupOrphans(t.Context(), func(types.UID) bool { return false }))
	f.requireUnstaged()
}

func TestDriverThatComesLaterIsUsedAtOnce(t *testing.T) {
	f := newDriverFixture(t)
	f.createUnattachedDriver()
	f.createDriverClaim("v")
	require.True(t, f.drivers.Remove(driverName, f.driver.Endpoint()))
	done := f.startMount(pod("a", claimVolume("data", "v")))
	require.Contains(t, f.nextEvent(), "driver name fake.csi.test not found in the list of registered CSI drivers")
	f.register()
	require.NoError(t, f.result(done), "the clock stands still: only the registration can be the cause")
	require.True(t, f.drivers.Remove(driverName, f.driver.Endpoint()))
	gone := make(chan error, 1)
	go func() { gone <- f.Unmount(t.Context(), "a") }()
	require.Contains(t, f.nextEvent(), "FailedUnmount")
	f.register()
	require.NoError(t, f.result(gone))
	f.requireUnstaged()
}

func TestCSIDriverObjectThatComesLaterIsSeenAtOnce(t *testing.T) {
	f := newDriverFixture(t)
	done := f.startMount(pod("a", vol("in", corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driverName}})))
	require.Contains(t, f.nextEvent(), `volume mode "Ephemeral" not supported by driver fake.csi.test (no CSIDriver object)`)
	f.create(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral},
	}})
	require.NoError(t, f.result(done), "the clock stands still: only the new object can be the cause")
	require.NoError(t, f.Unmount(t.Context(), "a"))
	f.requireUnstaged()
}

func TestVolumeThatNeedsNoAttachmentAfterAll(t *testing.T) {
	f := newDriverFixture(t)
	f.createDriverClaim("v")
	done := f.startMount(pod("a", claimVolume("data", "v")))
	f.eventually("it is in use", func() bool { return len(f.status.list()) == 1 })
	f.create(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName},
		Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)}})
	require.NoError(t, f.result(done))
	f.eventually("it is in use no more", func() bool { return len(f.status.list()) == 0 })
	require.NoError(t, f.Unmount(t.Context(), "a"))
	f.requireUnstaged()
}

func TestVolumeForOnePodOnly(t *testing.T) {
	f := newDriverFixture(t)
	f.createUnattachedDriver()
	f.createDriverClaim("v", func(pv *corev1.PersistentVolume) {
		pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	})
	require.NoError(t, f.Mount(t.Context(), pod("a", claimVolume("data", "v"))))
	done := f.startMount(pod("b", claimVolume("data", "v")))
	require.Contains(t, f.nextEvent(), "uses the ReadWriteOncePod access mode and is already in use by another pod")
	require.NoError(t, f.Unmount(t.Context(), "a"))
	require.NoError(t, f.result(done), "the clock stands still: only the unmount of the other Pod can be the cause")
	require.NoError(t, f.Unmount(t.Context(), "b"))
	f.requireUnstaged()
}

func TestCleanStopUnstagesDevices(t *testing.T) {
	f := newDriverFixture(t)
	f.createDriverClaim("v")
	f.attach("v")
	p := pod("a", claimVolume("data", "v"))
	require.NoError(t, f.Mount(t.Context(), p))
	require.NoError(t, f.UnmountAll(t.Context()))
	require.Zero(t, f.driver.Published()+f.driver.Staged())
	f.restart()
	f.attach("v")
	require.NoError(t, f.Mount(t.Context(), p))
	require.NoError(t, f.Unmount(t.Context(), "a"))
	f.requireUnstaged()
}
