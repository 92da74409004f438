package iscsi_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/attachdetach/iscsi"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

func TestDisksAreAttachable(t *testing.T) {
	plugins := operationexecutor.Plugins{iscsi.Plugin{}}
	inline := &volume.Spec{Name: "a", Volume: &corev1.Volume{Name: "a", VolumeSource: corev1.VolumeSource{
		ISCSI: &corev1.ISCSIVolumeSource{TargetPortal: "192.0.2.1", IQN: "iqn.2003-01.dev.berth:disk", Lun: 3}}}}
	pv := &volume.Spec{PV: &corev1.PersistentVolume{}}
	pv.PV.Spec.ISCSI = &corev1.ISCSIPersistentVolumeSource{TargetPortal: "192.0.2.1", IQN: "iqn.2003-01.dev.berth:disk", Lun: 3}
	for _, spec := range []*volume.Spec{inline, pv} {
		name, err := operationexecutor.UniqueVolumeNameFromSpec(plugins, spec)
		require.NoError(t, err)
		require.EqualValues(t, "kubernetes.io/iscsi/192.0.2.1:iqn.2003-01.dev.berth:disk:3", name)
	}
	_, err := operationexecutor.UniqueVolumeNameFromSpec(plugins, &volume.Spec{Name: "b", Volume: &corev1.Volume{Name: "b"}})
	require.ErrorIs(t, err, operationexecutor.ErrNotAttachable)
}

func TestAttachedDisksStayAttached(t *testing.T) {
	const name = "kubernetes.io/iscsi/192.0.2.1:iqn.2003-01.dev.berth:disk:3"
	verdicts, err := iscsi.Plugin{}.Verify(t.Context(), []operationexecutor.AttachedVolume{{VolumeName: name}}, "node")
	require.NoError(t, err)
	require.Equal(t, map[corev1.UniqueVolumeName]operationexecutor.Verdict{name: operationexecutor.VerdictAttached}, verdicts)
}
