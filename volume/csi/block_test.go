package csi_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/loopdev"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/blockpin"
	"github.com/berth-dev/berth/volume/csi/fake"
	"github.com/berth-dev/berth/volume/mounts"
)

// blockVolume returns a block volume of the driver, staged.
func (f *fixture) blockVolume() volume.Spec {
	f.t.Helper()
	spec := persistent("pv")
	spec.PV.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	device, err := f.Device(f.t.Context(), spec)
	require.NoError(f.t, err)
	require.NoError(f.t, f.Stage(f.t.Context(), volume.StageRequest{DeviceName: device.Name, Spec: spec}))
	return spec
}

// requireUnstaged unstages it, and fails if anything is left of it.
func (f *fixture) requireUnstaged() {
	f.t.Helper()
	require.NoError(f.t, f.Unstage(f.t.Context(), "kubernetes.io/csi/fake.csi.test^handle-pv"))
	require.Empty(f.t, f.pinnedPods())
	require.NoDirExists(f.t, filepath.Join(f.root, "plugins/kubernetes.io/csi/volumeDevices/pv"))
}

// pinnedPods lists the Pods for which the volume is pinned.
func (f *fixture) pinnedPods() []string {
	f.t.Helper()
	paths, err := blockpin.New(blockpin.Deps{}).ListBelow(f.root)
	require.NoError(f.t, err)
	var uids []string
	for _, path := range paths {
		uid, ok := strings.CutPrefix(path, filepath.Join(f.root, "plugins/kubernetes.io/csi/volumeDevices/pv/dev")+"/")
		require.True(f.t, ok, path)
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	return uids
}

func (f *fixture) requireMapped(request volume.Request) {
	f.t.Helper()
	mount, err := f.Map(f.t.Context(), request)
	require.NoError(f.t, err)
	require.Equal(f.t, filepath.Join(f.root, "plugins/kubernetes.io/csi/volumeDevices/publish/pv", string(request.Pod.UID)),
		mount.Path, "the container gets the device itself")
	link, err := os.Readlink(request.Dir)
	require.NoError(f.t, err)
	require.Equal(f.t, mount.Path, link)
}

func TestBlockDeviceIsPinnedForEachPodUntilUnmap(t *testing.T) {
	f := newFixture(t)
	f.start()
	spec := f.blockVolume()
	a, b := f.request("a", spec), f.request("b", spec)
	f.requireMapped(a)
	f.requireMapped(b)
	require.Equal(t, []string{"a", "b"}, f.pinnedPods())
	f.start() // a new process
	f.requireMapped(a)
	require.Equal(t, []string{"a", "b"}, f.pinnedPods(), "nothing is pinned twice or unpinned")

	f.driver.FailNext("NodePublishVolume", fake.Fault{Code: codes.Internal})
	_, err := f.Map(t.Context(), a)
	require.True(t, volume.IsUncertain(err), "%v", err)
	require.Equal(t, []string{"a", "b"}, f.pinnedPods(), "the container may keep running: a failure unpins nothing")

	var whenUnpublished []string
	f.driver.Plan(func(call, _ string) fake.Fault {
		if call == "NodeUnpublishVolume" {
			whenUnpublished = append(whenUnpublished, strings.Join(f.pinnedPods(), " "))
		}
		return fake.Fault{}
	})
	for range 2 {
		require.NoError(t, f.Unmap(t.Context(), a.Dir))
		require.Equal(t, []string{"b"}, f.pinnedPods())
	}
	require.NoError(t, f.Unmap(t.Context(), b.Dir))
	require.Equal(t, []string{"b", ""}, whenUnpublished, "the device must be unpinned before the call")
	require.NoDirExists(t, filepath.Join(f.root, "plugins/kubernetes.io/csi/volumeDevices/pv/dev"))
	f.requireUnstaged()
}

func TestDeviceThatIsNoLongerPublishedIsUnpinnedBeforeItIsPublishedAgain(t *testing.T) {
	f := newFixture(t)
	f.start()
	request := f.request("a", f.blockVolume())
	f.requireMapped(request)
	require.NoError(t, mounts.Syscalls{}.Unmount(filepath.Join(f.root, "plugins/kubernetes.io/csi/volumeDevices/publish/pv/a")))
	pinned := -1
	f.driver.Plan(func(string, string) fake.Fault {
		pinned = len(f.pinnedPods())
		return fake.Fault{}
	})
	f.requireMapped(request)
	require.Zero(t, pinned, "a pin may prevent the driver from publishing the device")
	require.Equal(t, []string{"a"}, f.pinnedPods())
	require.NoError(t, f.Unmap(t.Context(), request.Dir))
	f.requireUnstaged()
}

func TestDeviceThatCannotBePinned(t *testing.T) {
	f := newFixture(t)
	f.start()
	node := filepath.Join(filepath.Dir(f.root), "node") // of a device that does not exist
	require.NoError(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(loopdev.Major, 1<<19))))
	f.driver.Config.Device = node
	request := f.request("a", f.blockVolume())
	_, err := f.Map(t.Context(), request)
	require.ErrorContains(t, err, `map volume "pv": pin device`)
	require.True(t, volume.IsUncertain(err), "the driver has published it: %v", err)
	require.NoError(t, f.Unmap(t.Context(), request.Dir))
	require.Zero(t, f.driver.Published())
	f.requireUnstaged()
}

// TestLinksOfAnOlderVersion maps a volume that an earlier version mapped without pins: with links at the path of the pin and in
// the Pod's directory.
func TestLinksOfAnOlderVersion(t *testing.T) {
	for _, unmap := range []bool{false, true} {
		f := newFixture(t)
		f.start()
		request := f.request("a", f.blockVolume())
		f.requireMapped(request)
		at := filepath.Join(f.root, "plugins/kubernetes.io/csi/volumeDevices/pv/dev/a")
		require.NoError(t, blockpin.New(blockpin.Deps{}).Unpin(t.Context(), at))
		require.NoError(t, os.Mkdir(filepath.Dir(at), 0o750))
		require.NoError(t, os.Symlink(filepath.Join(f.root, "plugins/kubernetes.io/csi/volumeDevices/publish/pv/a"), at))
		require.NoError(t, os.Remove(request.Dir))
		require.NoError(t, os.Symlink(at, request.Dir))
		if !unmap {
			f.requireMapped(request)
			require.Equal(t, []string{"a"}, f.pinnedPods())
		}
		require.NoError(t, f.Unmap(t.Context(), request.Dir))
		require.NoFileExists(t, at)
		require.Zero(t, f.driver.Published())
		f.requireUnstaged()
	}
}

func TestPinOfAPodWhoseDirectoryWasRemovedByHand(t *testing.T) {
	f := newFixture(t)
	f.start()
	request := f.request("a", f.blockVolume())
	f.requireMapped(request)
	require.NoError(t, os.RemoveAll(volume.PodDir(f.root, types.UID("a"))))
	// Nothing records the publication any more: it has to be unpublished by hand, too.
	target := filepath.Join(f.root, "plugins/kubernetes.io/csi/volumeDevices/publish/pv/a")
	require.NoError(t, mounts.Syscalls{}.Unmount(target))
	require.NoError(t, os.RemoveAll(filepath.Dir(target)))
	f.requireUnstaged()
}
