package stubimages

import (
	"encoding/json"
	"fmt"
	"os"
	"path"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-dev/berth/conformance/internal/oci"
)

// registryDir is where agnhost's fake registry server has its images. Each has a directory with its manifests and its blobs, and a
// file for each tag with the digest of its manifest.
const registryDir = "/var/registry"

// addToRegistry adds an image to those that agnhost's fake registry server serves, as name:tag.
func addToRegistry(tree *oci.Tree, name, tag string, image oci.Image) error {
	dir, err := os.MkdirTemp("", "berth-registry-")
	if err != nil {
		return fmt.Errorf("assemble image %s:%s: %w", name, tag, err)
	}
	defer os.RemoveAll(dir)
	if err := oci.Write(dir, []oci.Image{image}); err != nil {
		return fmt.Errorf("assemble image %s:%s: %w", name, tag, err)
	}
	layout := oci.Open(dir)
	manifests, err := layout.Manifests()
	if err != nil {
		return fmt.Errorf("assemble image %s:%s: %w", name, tag, err)
	}
	at := manifests[image.Name].Digest
	text, err := os.ReadFile(layout.BlobPath(at))
	if err != nil {
		return fmt.Errorf("read manifest of image %s:%s: %w", name, tag, err)
	}
	var manifest ocispec.Manifest
	if err := json.Unmarshal(text, &manifest); err != nil {
		return fmt.Errorf("read manifest of image %s:%s: %w", name, tag, err)
	}
	tree.File(path.Join(registryDir, name, "manifests", tag), 0o644, []byte(at.String()+"\n"))
	tree.File(registryPath(name, "manifests", at), 0o644, text)
	for _, blob := range append(manifest.Layers, manifest.Config) {
		if err := tree.Copy(registryPath(name, "blobs", blob.Digest), 0o644, layout.BlobPath(blob.Digest)); err != nil {
			return err
		}
	}
	return nil
}

// registryPath is the file of a manifest or blob of an image.
func registryPath(image, kind string, of digest.Digest) string {
	hash := of.Encoded()
	return path.Join(registryDir, image, kind, of.Algorithm().String(), hash[:2], hash, "data")
}
