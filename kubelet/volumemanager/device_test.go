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
	w := deviceWorld(t)
	w.device("v")
	release := w.status.holdWrites()
	p := pod("a", claimVolume("data", "v"))
	p.Spec.SecurityContext = &corev1.PodSecurityContext{}
	w.attach("v") // attached from before, perhaps on its way out
	done := w.mounting(p)
	w.await("the Pod waits for the attachment", func() bool {
		record, _ := w.timeline.Record("a")
		for _, stage := range record.Stages {
			if stage.Name == "AttachVolume" {
				return true
			}
		}
		return false
	})
	require.Empty(t, w.driver.Calls(), "nothing may be done before the API server knows")
	w.NodeChanged(hereNode())
	release()
	w.await("in use", func() bool { return slices.Equal(w.status.list(), []corev1.UniqueVolumeName{unique("v")}) })
	require.Empty(t, w.driver.Calls(), "nothing may be done before the volume is attached")
	w.attach("v")
	require.NoError(t, w.result(done))
	require.Equal(t, []string{"NodeStageVolume v", "NodePublishVolume v"}, w.driver.Calls())
	stage, publish := csifake.Last[*csipb.NodeStageVolumeRequest](w.driver), csifake.Last[*csipb.NodePublishVolumeRequest](w.driver)
	require.Equal(t, map[string]string{"lun": "v"}, stage.PublishContext)
	require.Equal(t, map[string]string{"lun": "v"}, publish.PublishContext)
	require.Equal(t, stage.StagingTargetPath, publish.StagingTargetPath)
	require.Equal(t, filepath.Join(volume.Dir(w.root, "a", csi.Name, "pv-v"), "mount"), w.Volumes("a")["data"].Path)

	w.driver.FailNext("NodeUnstageVolume", csifake.Fault{Code: codes.Internal})
	require.NoError(t, w.Unmount(t.Context(), "a"))
	w.gone("a")
	w.await("the unstaging failed", func() bool { return slices.Contains(w.driver.Calls(), "NodeUnstageVolume v") })
	require.Len(t, w.status.list(), 1, "a volume is in use until it is unstaged")
	w.stepUntil(100*time.Millisecond, "unstaged", func() bool { return w.driver.Staged() == 0 })
	w.allGone()
}

func TestDeviceIsStagedOnceForAllItsPods(t *testing.T) {
	w := deviceWorld(t)
	w.noAttach()
	w.device("v")
	var wg sync.WaitGroup
	for _, uid := range []types.UID{"a", "b", "c"} {
		wg.Go(func() {
			if err := w.Mount(t.Context(), pod(uid, claimVolume("data", "v"))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, os.WriteFile(filepath.Join(w.Volumes("a")["data"].Path, "f"), []byte("x"), 0o644))
	require.Equal(t, "x", w.read("b", "data", "f"))
	require.NoError(t, w.Unmount(t.Context(), "a"))
	require.NoError(t, w.Unmount(t.Context(), "b"))
	require.Equal(t, 1, w.driver.Staged())
	require.Empty(t, w.status.list(), "what needs no attachment is not in use")
	require.NoError(t, w.Unmount(t.Context(), "c"))
	w.allGone()
	count := map[string]int{}
	for _, call := range w.driver.Calls() {
		count[call]++
	}
	require.Equal(t, map[string]int{
		"NodeStageVolume v": 1, "NodePublishVolume v": 3, "NodeUnpublishVolume v": 3, "NodeUnstageVolume v": 1,
	}, count)
}

func TestNewProcessTakesDevicesOver(t *testing.T) {
	w := deviceWorld(t)
	for _, name := range []string{"keep", "drop"} {
		w.device(name)
	}
	w.attach("keep", "drop")
	require.NoError(t, w.Mount(t.Context(), pod("a", claimVolume("data", "keep"))))
	require.NoError(t, w.Mount(t.Context(), pod("b", claimVolume("data", "drop"))))
	require.NoError(t, os.WriteFile(filepath.Join(w.Volumes("a")["data"].Path, "f"), []byte("x"), 0o644))
	before, err := mounts.ListBelow(w.root)
	require.NoError(t, err)

	w.restart()
	w.await("what is on disk is in use", func() bool { return len(w.status.list()) == 2 })
	w.attach("keep", "drop")
	require.NoError(t, w.Mount(t.Context(), pod("a", claimVolume("data", "keep"))))
	require.Equal(t, "x", w.read("a", "data", "f"))
	again, err := mounts.ListBelow(w.root)
	require.NoError(t, err)
	require.Equal(t, before, again)
	require.Equal(t, 2, w.driver.Staged(), "nothing is undone before it is known who is wanted")
	require.NoError(t, w.CleanupOrphans(t.Context(), func(uid types.UID) bool { return uid == "a" }))
	w.await("the other is gone", func() bool { return w.driver.Staged() == 1 && len(w.status.list()) == 1 })
	require.NoError(t, w.Unmount(t.Context(), "a"))
	w.allGone()
	require.FileExists(t, filepath.Join(w.driver.Config.Dir, "data/keep/f"))
}

func TestStagedDeviceWithoutPodIsUnstagedAfterARestart(t *testing.T) {
	w := deviceWorld(t)
	w.noAttach()
	w.device("v")
	w.driver.Plan(func(call, _ string) csifake.Fault {
		if call == "NodeUnstageVolume" {
			return csifake.Fault{Code: codes.Unavailable}
		}
		return csifake.Fault{}
	})
	require.NoError(t, w.Mount(t.Context(), pod("a", claimVolume("data", "v"))))
	require.NoError(t, w.Unmount(t.Context(), "a"))
	w.driver.Plan(nil)
	w.restart()
	require.NoError(t, w.CleanupOrphans(t.Context(), func(types.UID) bool { return false }))
	w.allGone()
}

func TestDriverThatComesLaterIsUsedAtOnce(t *testing.T) {
	w := deviceWorld(t)
	w.noAttach()
	w.device("v")
	require.True(t, w.drivers.Remove(driverName, w.driver.Endpoint()))
	done := w.mounting(pod("a", claimVolume("data", "v")))
	require.Contains(t, w.nextEvent(), "driver name fake.csi.test not found in the list of registered CSI drivers")
	w.register()
	require.NoError(t, w.result(done), "the clock stands still: only the driver's coming can be the cause")
	require.True(t, w.drivers.Remove(driverName, w.driver.Endpoint()))
	gone := make(chan error, 1)
	go func() { gone <- w.Unmount(t.Context(), "a") }()
	require.Contains(t, w.nextEvent(), "FailedUnmount")
	w.register()
	require.NoError(t, w.result(gone))
	w.allGone()
}

func TestCSIDriverObjectThatComesLaterIsSeenAtOnce(t *testing.T) {
	w := deviceWorld(t)
	done := w.mounting(pod("a", vol("in", corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driverName}})))
	require.Contains(t, w.nextEvent(), `volume mode "Ephemeral" not supported by driver fake.csi.test (no CSIDriver object)`)
	w.create(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral},
	}})
	require.NoError(t, w.result(done), "the clock stands still: only the object's coming can be the cause")
	require.NoError(t, w.Unmount(t.Context(), "a"))
	w.allGone()
}

func TestVolumeThatNeedsNoAttachmentAfterAll(t *testing.T) {
	w := deviceWorld(t)
	w.device("v")
	done := w.mounting(pod("a", claimVolume("data", "v")))
	w.await("it is in use", func() bool { return len(w.status.list()) == 1 })
	w.create(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName},
		Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)}})
	require.NoError(t, w.result(done))
	w.await("it is in use no more", func() bool { return len(w.status.list()) == 0 })
	require.NoError(t, w.Unmount(t.Context(), "a"))
	w.allGone()
}

func TestVolumeForOnePodOnly(t *testing.T) {
	w := deviceWorld(t)
	w.noAttach()
	w.device("v", func(pv *corev1.PersistentVolume) {
		pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	})
	require.NoError(t, w.Mount(t.Context(), pod("a", claimVolume("data", "v"))))
	done := w.mounting(pod("b", claimVolume("data", "v")))
	require.Contains(t, w.nextEvent(), "uses the ReadWriteOncePod access mode and is already in use by another pod")
	require.NoError(t, w.Unmount(t.Context(), "a"))
	require.NoError(t, w.result(done), "the clock stands still: only the other's end can be the cause")
	require.NoError(t, w.Unmount(t.Context(), "b"))
	w.allGone()
}

func TestCleanStopGivesDevicesBack(t *testing.T) {
	w := deviceWorld(t)
	w.device("v")
	w.attach("v")
	p := pod("a", claimVolume("data", "v"))
	require.NoError(t, w.Mount(t.Context(), p))
	require.NoError(t, w.UnmountAll(t.Context()))
	require.Zero(t, w.driver.Published()+w.driver.Staged())
	w.restart()
	w.attach("v")
	require.NoError(t, w.Mount(t.Context(), p))
	require.NoError(t, w.Unmount(t.Context(), "a"))
	w.allGone()
}
