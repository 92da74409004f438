package volumemanager_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/loopdev"
	"github.com/berth-dev/berth/kubelet/volumemanager"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/blockpin"
	"github.com/berth-dev/berth/volume/csi"
	csifake "github.com/berth-dev/berth/volume/csi/fake"
	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/testsuite"
)

// held lists the block devices that are held on the node.
func (w *world) held() []string {
	w.t.Helper()
	paths, err := blockpin.New(blockpin.Deps{}).ListBelow(w.root)
	require.NoError(w.t, err)
	return paths
}

// blockPod is a Pod whose only container uses all of these volumes as block devices.
func blockPod(uid types.UID, volumes ...corev1.Volume) *corev1.Pod {
	p := pod(uid, volumes...)
	container := &p.Spec.Containers[0]
	container.VolumeMounts = nil
	for _, v := range volumes {
		container.VolumeDevices = append(container.VolumeDevices, corev1.VolumeDevice{Name: v.Name, DevicePath: "/dev/" + v.Name})
	}
	return p
}

// localDevice is a claim bound to a local volume that is the block device, and the volume.
func (w *world) localDevice(name, device string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	w.t.Helper()
	claim, pv, _ := w.claim(name)
	pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	pv.Spec.Local.Path = device
	return claim, pv
}

func TestBlockVolume(t *testing.T) {
	w := deviceWorld(t)
	w.noAttach()
	w.device("v", func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) })
	p := blockPod("a", claimVolume("data", "v"))
	require.NoError(t, w.Supported(p))
	w.driver.FailNext("NodePublishVolume", csifake.Fault{Code: codes.Internal})
	failing := w.mounting(p)
	require.Contains(t, w.nextEvent(), `Warning FailedMapVolume MapVolume.MapPodDevice failed for volume "data" : csi driver`)
	w.stepUntil(100*time.Millisecond, "tried again", func() bool { return len(failing) == 1 })
	require.NoError(t, w.result(failing))
	for range 2 { // the second time as a new process
		require.NoError(t, w.Mount(t.Context(), p))
		mounted := w.Volumes("a")["data"]
		require.True(t, mounted.Block)
		info, err := os.Stat(mounted.Path)
		require.NoError(t, err)
		require.NotZero(t, info.Mode()&os.ModeDevice)
		link, err := filepath.EvalSymlinks(volume.DeviceDir(w.root, "a", csi.Name, "pv-v"))
		require.NoError(t, err)
		require.Equal(t, mounted.Path, link)
		require.Equal(t, []string{filepath.Join(w.root, "plugins/kubernetes.io/csi/volumeDevices/pv-v/dev/a")}, w.held())
		w.restart()
	}
	require.NoError(t, w.Unmount(t.Context(), "a"))
	require.NoDirExists(t, volume.PodDevicesDir(w.root, "a"))
	require.Empty(t, w.held())
	w.allGone()
	require.NoError(t, w.RemovePodDir("a"))

	wrong := w.mounting(pod("b", claimVolume("data", "v")))
	require.Contains(t, w.nextEvent(), `persistent volume "pv-v" has volumeMode Block, but the pod names it in volumeMounts`)
	require.NoError(t, w.Unmount(t.Context(), "b"))
	require.ErrorIs(t, w.result(wrong), volumemanager.ErrTerminating)
}

func TestLocalBlockVolume(t *testing.T) {
	w := newWorld(t)
	claim, pv := w.localDevice("v", testsuite.BlockDevice(t))
	w.create(claim, pv, hereNode())
	held := []string{filepath.Join(w.root, "plugins/kubernetes.io~local-volume/volumeDevices/pv-v/a")}
	for range 2 { // the second time as a new process
		require.NoError(t, w.Mount(t.Context(), blockPod("a", claimVolume("data", "v"))))
		require.Equal(t, pv.Spec.Local.Path, w.Volumes("a")["data"].Path, "the container gets the device itself")
		require.Equal(t, held, w.held())
		w.restart()
	}
	require.NoError(t, w.Unmount(t.Context(), "a"))
	require.Empty(t, w.held())
	w.gone("a")
}

func TestDeviceThatCannotBeHeldIsToldAndTriedAgain(t *testing.T) {
	w := newWorld(t)
	device := testsuite.BlockDevice(t)
	var stat unix.Stat_t
	require.NoError(t, unix.Stat(device, &stat))
	node := filepath.Join(filepath.Dir(w.root), "node") // of a device that is not there yet
	require.NoError(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(loopdev.Major, 1<<19))))
	claim, pv := w.localDevice("v", node)
	w.create(claim, pv, hereNode())
	done := w.mounting(blockPod("a", claimVolume("data", "v")))
	require.Regexp(t, `Warning FailedMapVolume MapVolume.MapPodDevice failed for volume "data" : map local volume "pv-v": hold device`,
		w.nextEvent())
	require.NoError(t, os.Remove(node))
	require.NoError(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(stat.Rdev)))
	w.stepUntil(100*time.Millisecond, "tried again", func() bool { return len(done) == 1 })
	require.NoError(t, w.result(done))
	require.Len(t, w.held(), 1)
	require.NoError(t, w.Unmount(t.Context(), "a"))
	require.Empty(t, w.held())
}

func TestCleanStopLetsDevicesGo(t *testing.T) {
	w := deviceWorld(t)
	w.noAttach()
	w.device("v", func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) })
	claim, pv := w.localDevice("l", testsuite.BlockDevice(t))
	w.create(claim, pv, hereNode())
	p := blockPod("a", claimVolume("data", "v"), claimVolume("disk", "l"))
	require.NoError(t, w.Mount(t.Context(), p))
	require.Len(t, w.held(), 2)
	w.driver.FailText = "the driver does not answer" // what it holds is left to force
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	require.NoError(t, w.UnmountAll(ctx))
	require.Empty(t, w.held())
	left, err := mounts.ListBelow(w.root)
	require.NoError(t, err)
	require.Empty(t, left)
	w.driver.FailText = ""
	w.restart()
	require.NoError(t, w.Mount(t.Context(), p))
	require.Len(t, w.held(), 2)
	require.NoError(t, w.Unmount(t.Context(), "a"))
	w.allGone()
	require.Empty(t, w.held())
}

func TestDeviceOfAPodWhoseDirectoryWasRemovedByHandIsLetGo(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"keep", "drop"} {
		claim, pv := w.localDevice(name, testsuite.BlockDevice(t))
		w.create(claim, pv)
	}
	w.create(hereNode())
	require.NoError(t, w.Mount(t.Context(), blockPod("a", claimVolume("data", "keep"))))
	require.NoError(t, w.Mount(t.Context(), blockPod("b", claimVolume("data", "drop"))))
	require.NoError(t, os.RemoveAll(volume.PodDir(w.root, "b")))
	w.restart()
	require.NoError(t, w.CleanupOrphans(t.Context(), func(uid types.UID) bool { return uid == "a" }))
	require.Equal(t, []string{filepath.Join(w.root, "plugins/kubernetes.io~local-volume/volumeDevices/pv-keep/a")}, w.held())
	require.NoError(t, w.Unmount(t.Context(), "a"))
	require.Empty(t, w.held())
}
