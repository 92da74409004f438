package runtimehelper

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/volumemanager"
)

func TestBlockDevicesAreGivenByTheirRights(t *testing.T) {
	container := &corev1.Container{VolumeDevices: []corev1.VolumeDevice{
		{Name: "write", DevicePath: "/dev/w"}, {Name: "read", DevicePath: "/dev/r"},
		{Name: "files", DevicePath: "/dev/f"}, {Name: "late", DevicePath: "/dev/l"},
	}}
	require.Equal(t, []*runtimeapi.Device{
		{ContainerPath: "/dev/w", HostPath: "/host/w", Permissions: "mrw"},
		{ContainerPath: "/dev/r", HostPath: "/host/r", Permissions: "mr"},
	}, blockDevices(container, map[string]volumemanager.Mounted{
		"write": {Path: "/host/w", Block: true}, "read": {Path: "/host/r", Block: true, ReadOnly: true},
		"files": {Path: "/host/f"}, "unused": {Path: "/host/u", Block: true},
	}))
}
