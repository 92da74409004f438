package stubimages

import (
	"maps"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	imageutils "k8s.io/kubernetes/test/utils/image"
)

// csiImages are the images that only the manifests of CSI drivers have. The sidecars are newer releases than those that the suite
// names: the ones that the module proxy has.
func csiImages() []recipe {
	return []recipe{
		sidecar("csi-attacher", "csi-attacher"),
		sidecar("csi-provisioner", "csi-provisioner"),
		sidecar("csi-resizer", "csi-resizer"),
		sidecar("csi-snapshotter", "csi-snapshotter"),
		sidecar("csi-node-driver-registrar", "csiregistrar"),
		// The specs about DRA run it, and a shell's commands, in a Pod that does nothing.
		{
			name: "hostpathplugin", ids: named("hostpathplugin"), on: "base", built: map[string]string{"/hostpathplugin": "hostpathplugin"},
			config: ocispec.ImageConfig{Entrypoint: []string{"/hostpathplugin"}},
		},
		{name: "busybox-of-mock", ids: named("busybox"), on: "base", config: ocispec.ImageConfig{Cmd: []string{"sh"}}},
	}
}

// sidecar is the recipe of an image of the manifests of CSI drivers: nothing but one program of build.sh.
func sidecar(image, program string) recipe {
	return recipe{
		name: image, ids: named(image), built: map[string]string{"/" + program: program},
		config: ocispec.ImageConfig{Entrypoint: []string{"/" + program}},
	}
}

// named returns the images of that name which only the manifests of CSI drivers have: they have no constant, and their ids are higher than
// all that have one. An image may be there in several versions.
func named(name string) []imageutils.ImageID {
	byImage := make(map[string]imageutils.ImageID)
	for id, config := range imageutils.GetImageConfigs() {
		image := config.GetE2EImage()
		if id > imageutils.VolumeISCSIServer && strings.HasPrefix(image[strings.LastIndex(image, "/")+1:], name+":") {
			byImage[image] = id
		}
	}
	return slices.Sorted(maps.Values(byImage))
}
