package local_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/loopdev"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/blockpin"
	"github.com/berth-dev/berth/volume/local"
	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/testsuite"
)

func TestBlockDevice(t *testing.T) {
	root := testsuite.Root(t)
	device := testsuite.BlockDevice(t)
	blockSpec := spec(device)
	blockSpec.PV.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	plugin := local.New(mounts.Syscalls{})
	request := volume.Request{
		Pod: testsuite.Pod("u", blockSpec), Spec: blockSpec, Dir: volume.DeviceDir(root, "u", local.Name, "pv-1"),
	}
	require.NoError(t, plugin.Unmap(t.Context(), request.Dir), "a missing volume is fine")
	held := filepath.Join(root, "plugins/kubernetes.io~local-volume/volumeDevices/pv-1/u")
	holder := blockpin.New(blockpin.Deps{})
	for range 2 {
		mount, err := plugin.Map(t.Context(), request)
		require.NoError(t, err)
		require.Equal(t, volume.Mount{Path: device}, mount)
		link, err := os.Readlink(request.Dir)
		require.NoError(t, err)
		require.Equal(t, device, link)
		holds, err := holder.ListBelow(root)
		require.NoError(t, err)
		require.Equal(t, []string{held}, holds)
		plugin = local.New(mounts.Syscalls{}) // a new process
	}
	for range 2 {
		require.NoError(t, plugin.Unmap(t.Context(), request.Dir))
		require.NoFileExists(t, request.Dir)
		require.NoDirExists(t, filepath.Dir(held))
		require.FileExists(t, device)
	}

	// Whatever fails, what there is of the volume is found by its link.
	node := filepath.Join(root, "node")
	require.NoError(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(loopdev.Major, 1<<19))))
	blockSpec.PV.Spec.Local.Path = node
	_, err := plugin.Map(t.Context(), request)
	require.True(t, volume.IsUncertain(err), "%v", err)
	require.ErrorContains(t, err, `map local volume "pv-1": pin device`)
	require.FileExists(t, held)
	require.NoError(t, plugin.Unmap(t.Context(), request.Dir))
	require.NoDirExists(t, filepath.Dir(held))
	require.NoFileExists(t, request.Dir)

	file := filepath.Join(root, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	blockSpec.PV.Spec.Local.Path = file
	_, err = plugin.Map(t.Context(), request)
	require.ErrorContains(t, err, "is not a block device")
}
