// Package csimode converts the access modes of PersistentVolumes to those of CSI. All calls for a volume have to name the same one.
package csimode

import (
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
)

// Mode is an access mode of CSI.
type Mode = csi.VolumeCapability_AccessMode_Mode

// Of returns the access mode of CSI for one of Kubernetes. A driver without the capability SINGLE_NODE_MULTI_WRITER, which distinguishes says
// that it has, does not distinguish one writer on a node from several.
func Of(mode corev1.PersistentVolumeAccessMode, distinguishes bool) Mode {
	switch {
	case mode == corev1.ReadWriteMany:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case mode == corev1.ReadOnlyMany:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case mode == corev1.ReadWriteOnce && distinguishes:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	case mode == corev1.ReadWriteOncePod && distinguishes:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	case mode == corev1.ReadWriteOnce, mode == corev1.ReadWriteOncePod:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	}
	return csi.VolumeCapability_AccessMode_UNKNOWN
}

// widest are the modes from the one that allows the most to the one that allows the least.
var widest = []corev1.PersistentVolumeAccessMode{
	corev1.ReadWriteMany, corev1.ReadOnlyMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod,
}

// Widest returns the access mode of CSI that allows what the modes of a volume allow together, whatever their order: one writer and many
// readers are more than either of them.
func Widest(modes []corev1.PersistentVolumeAccessMode, distinguishes bool) Mode {
	for _, mode := range widest {
		if !slices.Contains(modes, mode) {
			continue
		}
		if mode == corev1.ReadOnlyMany && slices.Contains(modes, corev1.ReadWriteOnce) {
			return csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER
		}
		return Of(mode, distinguishes)
	}
	return Of(corev1.ReadWriteOnce, distinguishes)
}

// Capability returns how a volume of CSI is used, for the calls of the controller service that do not name a Pod.
func Capability(pv *corev1.PersistentVolume, distinguishes bool) *csi.VolumeCapability {
	capability := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: Widest(pv.Spec.AccessModes, distinguishes)}}
	if mode := pv.Spec.VolumeMode; mode != nil && *mode == corev1.PersistentVolumeBlock {
		capability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		return capability
	}
	capability.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{
		FsType: pv.Spec.CSI.FSType, MountFlags: pv.Spec.MountOptions,
	}}
	return capability
}
