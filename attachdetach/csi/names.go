package csi

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// PluginName is the name of the plugin, the first part of the unique names of its volumes.
const PluginName = "kubernetes.io/csi"

// AnnOwner is the annotation of a VolumeAttachment that names the controller which created it, where there are several.
const AnnOwner = "attachdetach.berth.dev/owner"

// separator divides driver and handle. A driver's name is a DNS name and never contains it; a handle may.
const separator = "^"

// VolumeName is the name of a volume within the plugin.
func VolumeName(driver, handle string) string { return driver + separator + handle }

// SplitVolumeName undoes VolumeName.
func SplitVolumeName(name string) (driver, handle string, err error) {
	driver, handle, ok := strings.Cut(name, separator)
	if !ok || driver == "" || handle == "" {
		return "", "", fmt.Errorf("split csi volume name %q: want DRIVER^HANDLE", name)
	}
	return driver, handle, nil
}

// AttachmentName is the name of the VolumeAttachment of a volume on a node. Kubelets compute it too, so it cannot be
// changed, although nothing divides its parts.
func AttachmentName(driver, handle string, node types.NodeName) string {
	sum := sha256.Sum256([]byte(handle + driver + string(node)))
	return "csi-" + hex.EncodeToString(sum[:])
}
