package volumemanager_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// pinnedDevices lists the block devices that are pinned on the node.
func (f *fixture) pinnedDevices() []string {
	f.t.Helper()
	paths, err := blockpin.New(blockpin.Deps{}).ListBelow(f.root)
	require.NoError(f.t, err)
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

// newLocalBlockClaim is a claim bound to a local volume that is the block device, and the volume.
func (f *fixture) newLocalBlockClaim(name, device string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	f.t.Helper()
	claim, pv, _ := f.newLocalClaim(name)
	pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	pv.Spec.Local.Path = device
	return claim, pv
}

func TestBlockVolume(t *testing.T) {
	f := newDriverFixture(t)
	f.createUnattachedDriver()
	f.createDriverClaim("v", func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) })
	p := blockPod("a", claimVolume("data", "v"))
	require.NoError(t, f.Supported(p))
	f.driver.FailNext("NodePublishVolume", csifake.Fault{Code: codes.Internal})
	failing := f.startMount(p)
	require.Contains(t, f.nextEvent(), `Warning FailedMapVolume MapVolume.MapPodDevice failed for volume "data" : csi driver`)
	f.stepUntil(100*time.Millisecond, "tried again", func() bool { return len(failing) == 1 })
	require.NoError(t, f.result(failing))
	for range 2 { // the second time as a new process
		require.NoError(t, f.Mount(t.Context(), p))
		mounted := f.Volumes("a")["data"]
		require.True(t, mounted.Block)
		info, err := os.Stat(mounted.Path)
		require.NoError(t, err)
		require.NotZero(t, info.Mode()&os.ModeDevice)
		link, err := filepath.EvalSymlinks(volume.DeviceDir(f.root, "a", csi.Name, "pv-v"))
		require.NoError(t, err)
		require.Equal(t, mounted.Path, link)
		require.Equal(t, []string{filepath.Join(f.root, "plugins/kubernetes.io/csi/volumeDevices/pv-v/dev/a")}, f.pinnedDevices())
		f.restart()
	}
	require.NoError(t, f.Unmount(t.Context(), "a"))
	require.NoDirExists(t, volume.PodDevicesDir(f.root, "a"))
	require.Empty(t, f.pinnedDevices())
	f.requireUnstaged()
	require.NoError(t, f.RemovePodDir("a"))

	wrong := f.startMount(pod("b", claimVolume("data", "v")))
	require.Contains(t, f.nextEvent(), `persistent volume "pv-v" has volumeMode Block, but the pod names it in volumeMounts`)
	require.NoError(t, f.Unmount(t.Context(), "b"))
	require.ErrorIs(t, f.result(wrong), volumemanager.ErrTerminating)
}

// TestBlockVolumeOfKubernetesKubelet ends a Pod that the other kubelet has started: that one writes a data file beside the Pods' links only.
func TestBlockVolumeOfKubernetesKubelet(t *testing.T) {
	f := newDriverFixture(t)
	f.createDriverClaim("v", func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) })
	f.attach("v")
	require.NoError(t, f.Mount(t.Context(), blockPod("a", claimVolume("data", "v"))))
	f.stop()
	require.NoError(t, os.RemoveAll(filepath.Join(f.root, "plugins/kubernetes.io/csi", driverName)))
	file := filepath.Join(f.root, "plugins/kubernetes.io/csi/volumeDevices/pv-v/data/vol_data.json")
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(data), `,"volumeMode":"Block"`, "")), 0o600))
	written := make(chan []corev1.UniqueVolumeName, 10)
	f.status.checkWrites(func(inUse []corev1.UniqueVolumeName) { written <- slices.Clone(inUse) })
	f.start()
	require.Equal(t, []corev1.UniqueVolumeName{uniqueName("v")}, <-written, "it must not be detached yet")
	require.NoError(t, f.Unmount(t.Context(), "a"))
	f.requireUnstaged()
	require.NoDirExists(t, filepath.Join(f.root, "plugins/kubernetes.io/csi/volumeDevices/pv-v"))
}

func TestLocalBlockVolume(t *testing.T) {
	f := newFixture(t)
	claim, pv := f.newLocalBlockClaim("v", testsuite.BlockDevice(t))
	f.create(claim, pv, newNode())
	device, err := os.Open(pv.Spec.Local.Path)
	require.NoError(t, err)
	size, err := device.Seek(0, io.SeekEnd)
	require.NoError(t, errors.Join(err, device.Close()))
	require.NotZero(t, size)
	pinned := []string{filepath.Join(f.root, "plugins/kubernetes.io~local-volume/volumeDevices/pv-v/a")}
	for range 2 { // the second time as a new process
		require.NoError(t, f.Mount(t.Context(), blockPod("a", claimVolume("data", "v"))))
		require.Equal(t, pv.Spec.Local.Path, f.Volumes("a")["data"].Path, "the container gets the device itself")
		require.Equal(t, pinned, f.pinnedDevices())
		stats, err := f.Stats(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, map[string]volume.Stats{"data": {Capacity: size}}, stats)
		f.restart()
	}
	require.NoError(t, f.Unmount(t.Context(), "a"))
	require.Empty(t, f.pinnedDevices())
	f.requireUnmounted("a")
}

func TestDeviceThatCannotBePinnedIsReportedAndRetried(t *testing.T) {
	f := newFixture(t)
	device := testsuite.BlockDevice(t)
	var stat unix.Stat_t
	require.NoError(t, unix.Stat(device, &stat))
	node := filepath.Join(testsuite.DeviceDir(t), "node") // of a device that does not exist yet
	require.NoError(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(loopdev.Major, 1<<19))))
	claim, pv := f.newLocalBlockClaim("v", node)
	f.create(claim, pv, newNode())
	done := f.startMount(blockPod("a", claimVolume("data", "v")))
	require.Regexp(t, `Warning FailedMapVolume MapVolume.MapPodDevice failed for volume "data" : map local volume "pv-v": pin device`,
		f.nextEvent())
	require.NoError(t, os.Remove(node))
	require.NoError(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(stat.Rdev)))
	f.stepUntil(100*time.Millisecond, "tried again", func() bool { return len(done) == 1 })
	require.NoError(t, f.result(done))
	require.Len(t, f.pinnedDevices(), 1)
	require.NoError(t, f.Unmount(t.Context(), "a"))
	require.Empty(t, f.pinnedDevices())
}

func TestCleanStopUnpinsDevices(t *testing.T) {
	f := newDriverFixture(t)
	f.createUnattachedDriver()
	f.createDriverClaim("v", func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) })
	claim, pv := f.newLocalBlockClaim("l", testsuite.BlockDevice(t))
	f.create(claim, pv, newNode())
	p := blockPod("a", claimVolume("data", "v"), claimVolume("disk", "l"))
	require.NoError(t, f.Mount(t.Context(), p))
	require.Len(t, f.pinnedDevices(), 2)
	f.driver.FailText = "the driver does not work" // its devices are unmounted by force
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	require.NoError(t, f.UnmountAll(ctx))
	require.Empty(t, f.pinnedDevices())
	left, err := mounts.ListBelow(f.root)
	require.NoError(t, err)
	require.Empty(t, left)
	f.driver.FailText = ""
	f.restart()
	require.NoError(t, f.Mount(t.Context(), p))
	require.Len(t, f.pinnedDevices(), 2)
	require.NoError(t, f.Unmount(t.Context(), "a"))
	f.requireUnstaged()
	require.Empty(t, f.pinnedDevices())
}

func TestDeviceOfAPodWhoseDirectoryWasRemovedByHandIsUnpinned(t *testing.T) {
	f := newFixture(t)
	for _, name := range []string{"keep", "drop"} {
		claim, pv := f.newLocalBlockClaim(name, testsuite.BlockDevice(t))
		f.create(claim, pv)
	}
	f.create(newNode())
	require.NoError(t, f.Mount(t.Context(), blockPod("a", claimVolume("data", "keep"))))
	require.NoError(t, f.Mount(t.Context(), blockPod("b", claimVolume("data", "drop"))))
	require.NoError(t, os.RemoveAll(volume.PodDir(f.root, "b")))
	f.restart()
	require.NoError(t, f.CleanupOrphans(t.Context(), func(uid types.UID) bool { return uid == "a" }))
	require.Equal(t, []string{filepath.Join(f.root, "plugins/kubernetes.io~local-volume/volumeDevices/pv-keep/a")}, f.pinnedDevices())
	require.NoError(t, f.Unmount(t.Context(), "a"))
	require.Empty(t, f.pinnedDevices())
}
