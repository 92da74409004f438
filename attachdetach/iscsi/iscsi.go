// Package iscsi lets the attach/detach controller decide which node may use an iSCSI disk. It connects none: the kubelet of the node does that
// once the Node lists the disk as attached, and disconnects it before the Node stops listing it as in use.
package iscsi

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/iscsi"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

// Plugin is the operationexecutor.AttachablePlugin of iSCSI disks. It has no state.
type Plugin struct{}

var _ operationexecutor.AttachablePlugin = Plugin{}

// Name implements operationexecutor.AttachablePlugin.
func (Plugin) Name() string { return iscsi.Name }

// CanAttach implements operationexecutor.AttachablePlugin.
func (Plugin) CanAttach(spec *volume.Spec) (bool, error) {
	_, ok := iscsi.VolumeName(*spec)
	return ok, nil
}

// VolumeName implements operationexecutor.AttachablePlugin.
func (Plugin) VolumeName(spec *volume.Spec) (string, error) {
	name, ok := iscsi.VolumeName(*spec)
	if !ok {
		return "", fmt.Errorf("name volume %q: it has no field iscsi", spec.DirName())
	}
	return name, nil
}

// Attach implements operationexecutor.AttachablePlugin. The kubelet finds the path of the device.
func (Plugin) Attach(context.Context, *volume.Spec, types.NodeName) (devicePath string, err error) {
	return "", nil
}

// Detach implements operationexecutor.AttachablePlugin.
func (Plugin) Detach(context.Context, string, types.NodeName) error { return nil }

// Verify implements operationexecutor.AttachablePlugin: what the controller has recorded is all there is of an attachment.
func (Plugin) Verify(_ context.Context, volumes []operationexecutor.AttachedVolume, _ types.NodeName,
) (map[corev1.UniqueVolumeName]operationexecutor.Verdict, error) {
	verdicts := make(map[corev1.UniqueVolumeName]operationexecutor.Verdict, len(volumes))
	for _, attached := range volumes {
		verdicts[attached.VolumeName] = operationexecutor.VerdictAttached
	}
	return verdicts, nil
}
