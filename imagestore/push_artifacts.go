package imagestore

import (
	"encoding/json"
	"regexp"

	"github.com/containerd/containerd/v2/core/images"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// attachedTag matches the tags that clients give to what belongs to an image: its digest, and what it is (sbom, sig, att).
var attachedTag = regexp.MustCompile(`^sha256-[0-9a-f]{64}(\.[a-z0-9]+)?$`)

// isAttachment reports whether a manifest is that of something that belongs to an image and is none itself, such as its bill of materials or
// its signature. ko and cosign push these with an image, and would fail without them.
func isAttachment(tag, mediaType string, contents []byte) bool {
	if !images.IsManifestType(mediaType) {
		return false
	}
	var manifest ocispec.Manifest
	if err := json.Unmarshal(contents, &manifest); err != nil || manifest.Subject == nil && !attachedTag.MatchString(tag) {
		return false
	}
	if !images.IsConfigType(manifest.Config.MediaType) {
		return true
	}
	for _, layer := range manifest.Layers {
		if !images.IsLayerType(layer.MediaType) {
			return true
		}
	}
	return false
}
