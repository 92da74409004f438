package local_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/volume"
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
		Pod: testsuite.Pod("u", blockSpec), Node: here, Spec: blockSpec, Dir: volume.DeviceDir(root, "u", local.Name, "pv-1"),
	}
	require.NoError(t, plugin.Unmap(t.Context(), request.Dir), "what is not there is fine")
	for range 2 {
		mount, err := plugin.Map(t.Context(), request)
		require.NoError(t, err)
		require.Equal(t, volume.Mount{Path: device}, mount)
		link, err := os.Readlink(request.Dir)
		require.NoError(t, err)
		require.Equal(t, device, link)
	}
	require.NoError(t, plugin.Unmap(t.Context(), request.Dir))
	require.NoFileExists(t, request.Dir)
	require.FileExists(t, device)

	file := filepath.Join(root, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	blockSpec.PV.Spec.Local.Path = file
	_, err := plugin.Map(t.Context(), request)
	require.ErrorContains(t, err, "is no block device")
	blockSpec.PV.Spec.Local.Path = device
	request.Node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "there"}}
	_, err = plugin.Map(t.Context(), request)
	require.ErrorContains(t, err, "its data is on another node")
}
