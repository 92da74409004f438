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
	"github.com/berth-dev/berth/volume/csi/fake"
	"github.com/berth-dev/berth/volume/hold"
	"github.com/berth-dev/berth/volume/mounts"
)

// blockVolume is a block volume of the driver, staged.
func (w *world) blockVolume() volume.Spec {
	w.t.Helper()
	spec := persistent("pv")
	spec.PV.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	device, err := w.Device(w.t.Context(), spec)
	require.NoError(w.t, err)
	require.NoError(w.t, w.Stage(w.t.Context(), volume.StageRequest{DeviceName: device.Name, Spec: spec}))
	return spec
}

// unstaged unstages it, and fails if anything is left of it.
func (w *world) unstaged() {
	w.t.Helper()
	require.NoError(w.t, w.Unstage(w.t.Context(), "kubernetes.io/csi/fake.csi.test^handle-pv"))
	require.Empty(w.t, w.held())
	require.NoDirExists(w.t, filepath.Join(w.root, "plugins/kubernetes.io/csi/volumeDevices/pv"))
}

// held lists the holds of the volume, by their Pods.
func (w *world) held() []string {
	w.t.Helper()
	paths, err := hold.New(hold.Deps{}).Below(w.root)
	require.NoError(w.t, err)
	var uids []string
	for _, path := range paths {
		uid, ok := strings.CutPrefix(path, filepath.Join(w.root, "plugins/kubernetes.io/csi/volumeDevices/pv/dev")+"/")
		require.True(w.t, ok, path)
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	return uids
}

func (w *world) isMapped(request volume.Request) {
	w.t.Helper()
	mount, err := w.Map(w.t.Context(), request)
	require.NoError(w.t, err)
	require.Equal(w.t, filepath.Join(w.root, "plugins/kubernetes.io/csi/volumeDevices/publish/pv", string(request.Pod.UID)),
		mount.Path, "the container gets the device itself")
	link, err := os.Readlink(request.Dir)
	require.NoError(w.t, err)
	require.Equal(w.t, mount.Path, link)
}

func TestBlockDeviceIsHeldForEachPodUntilUnmap(t *testing.T) {
	w := newWorld(t)
	w.start()
	spec := w.blockVolume()
	a, b := w.request("a", spec), w.request("b", spec)
	w.isMapped(a)
	w.isMapped(b)
	require.Equal(t, []string{"a", "b"}, w.held())
	w.start() // a new process
	w.isMapped(a)
	require.Equal(t, []string{"a", "b"}, w.held(), "nothing is held twice, nothing let go")

	w.driver.FailNext("NodePublishVolume", fake.Fault{Code: codes.Internal})
	_, err := w.Map(t.Context(), a)
	require.True(t, volume.IsUncertain(err), "%v", err)
	require.Equal(t, []string{"a", "b"}, w.held(), "the container may run on: a failure lets nothing go")

	var whenUnpublished []string
	w.driver.Plan(func(call, _ string) fake.Fault {
		if call == "NodeUnpublishVolume" {
			whenUnpublished = append(whenUnpublished, strings.Join(w.held(), " "))
		}
		return fake.Fault{}
	})
	for range 2 {
		require.NoError(t, w.Unmap(t.Context(), a.Dir))
		require.Equal(t, []string{"b"}, w.held())
	}
	require.NoError(t, w.Unmap(t.Context(), b.Dir))
	require.Equal(t, []string{"b", ""}, whenUnpublished, "the driver must find the device let go")
	require.NoDirExists(t, filepath.Join(w.root, "plugins/kubernetes.io/csi/volumeDevices/pv/dev"))
	w.unstaged()
}

func TestDeviceThatIsNoLongerPublishedIsLetGoBeforeItIsPublishedAgain(t *testing.T) {
	w := newWorld(t)
	w.start()
	request := w.request("a", w.blockVolume())
	w.isMapped(request)
	require.NoError(t, mounts.Syscalls{}.Unmount(filepath.Join(w.root, "plugins/kubernetes.io/csi/volumeDevices/publish/pv/a")))
	held := -1
	w.driver.Plan(func(string, string) fake.Fault {
		held = len(w.held())
		return fake.Fault{}
	})
	w.isMapped(request)
	require.Zero(t, held, "what is held may be in the driver's way")
	require.Equal(t, []string{"a"}, w.held())
	require.NoError(t, w.Unmap(t.Context(), request.Dir))
	w.unstaged()
}

func TestDeviceThatCannotBeHeld(t *testing.T) {
	w := newWorld(t)
	w.start()
	nobody := filepath.Join(filepath.Dir(w.root), "nobody") // the node of a device that nobody has
	require.NoError(t, unix.Mknod(nobody, unix.S_IFBLK|0o600, int(unix.Mkdev(loopdev.Major, 1<<19))))
	w.driver.Config.Device = nobody
	request := w.request("a", w.blockVolume())
	_, err := w.Map(t.Context(), request)
	require.ErrorContains(t, err, `map volume "pv": hold device`)
	require.True(t, volume.IsUncertain(err), "the driver has published it: %v", err)
	require.NoError(t, w.Unmap(t.Context(), request.Dir))
	require.Zero(t, w.driver.Published())
	w.unstaged()
}

// TestLinksOfAnOlderVersion takes over what was mapped before devices were held: links in the place of the hold and in
// the Pod's directory.
func TestLinksOfAnOlderVersion(t *testing.T) {
	for _, unmap := range []bool{false, true} {
		w := newWorld(t)
		w.start()
		request := w.request("a", w.blockVolume())
		w.isMapped(request)
		at := filepath.Join(w.root, "plugins/kubernetes.io/csi/volumeDevices/pv/dev/a")
		require.NoError(t, hold.New(hold.Deps{}).Release(t.Context(), at))
		require.NoError(t, os.Mkdir(filepath.Dir(at), 0o750))
		require.NoError(t, os.Symlink(filepath.Join(w.root, "plugins/kubernetes.io/csi/volumeDevices/publish/pv/a"), at))
		require.NoError(t, os.Remove(request.Dir))
		require.NoError(t, os.Symlink(at, request.Dir))
		if !unmap {
			w.isMapped(request)
			require.Equal(t, []string{"a"}, w.held())
		}
		require.NoError(t, w.Unmap(t.Context(), request.Dir))
		require.NoFileExists(t, at)
		require.Zero(t, w.driver.Published())
		w.unstaged()
	}
}

func TestHoldOfAPodWhoseDirectoryWasRemovedByHand(t *testing.T) {
	w := newWorld(t)
	w.start()
	request := w.request("a", w.blockVolume())
	w.isMapped(request)
	require.NoError(t, os.RemoveAll(volume.PodDir(w.root, types.UID("a"))))
	// Nothing tells of the publication any more: somebody has to end it by hand too.
	target := filepath.Join(w.root, "plugins/kubernetes.io/csi/volumeDevices/publish/pv/a")
	require.NoError(t, mounts.Syscalls{}.Unmount(target))
	require.NoError(t, os.RemoveAll(filepath.Dir(target)))
	w.unstaged()
}
