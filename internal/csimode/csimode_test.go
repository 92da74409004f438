package csimode_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/csimode"
)

const (
	rwo, rwop = corev1.ReadWriteOnce, corev1.ReadWriteOncePod
	rox, rwx  = corev1.ReadOnlyMany, corev1.ReadWriteMany
)

func TestWidest(t *testing.T) {
	for _, test := range []struct {
		modes         []corev1.PersistentVolumeAccessMode
		distinguishes bool
		want          string
	}{
		{nil, false, "SINGLE_NODE_WRITER"},
		{[]corev1.PersistentVolumeAccessMode{rwo}, false, "SINGLE_NODE_WRITER"},
		{[]corev1.PersistentVolumeAccessMode{rwo}, true, "SINGLE_NODE_MULTI_WRITER"},
		{[]corev1.PersistentVolumeAccessMode{rwop}, false, "SINGLE_NODE_WRITER"},
		{[]corev1.PersistentVolumeAccessMode{rwop}, true, "SINGLE_NODE_SINGLE_WRITER"},
		{[]corev1.PersistentVolumeAccessMode{rox}, true, "MULTI_NODE_READER_ONLY"},
		{[]corev1.PersistentVolumeAccessMode{rox, rwo}, false, "MULTI_NODE_SINGLE_WRITER"},
		{[]corev1.PersistentVolumeAccessMode{rwo, rox}, true, "MULTI_NODE_SINGLE_WRITER"},
		{[]corev1.PersistentVolumeAccessMode{rwo, rox, rwx}, true, "MULTI_NODE_MULTI_WRITER"},
		{[]corev1.PersistentVolumeAccessMode{"Tape"}, true, "SINGLE_NODE_MULTI_WRITER"},
	} {
		require.Equal(t, test.want, csimode.Widest(test.modes, test.distinguishes).String(), "%v", test)
	}
	require.Equal(t, csi.VolumeCapability_AccessMode_UNKNOWN, csimode.Of("Tape", false))
}

func TestCapability(t *testing.T) {
	pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{rwo, rox}, MountOptions: []string{"noatime"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{FSType: "xfs"}},
	}}
	mounted := csimode.Capability(pv, false)
	require.Equal(t, csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER, mounted.GetAccessMode().GetMode())
	require.Equal(t, "xfs", mounted.GetMount().GetFsType())
	require.Equal(t, []string{"noatime"}, mounted.GetMount().GetMountFlags())
	pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	block := csimode.Capability(pv, false)
	require.NotNil(t, block.GetBlock())
	require.Nil(t, block.GetMount())
}
