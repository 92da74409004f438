package stubimages

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/conformance/internal/oci"
)

// TestRegistryHasAllOfAnImage follows an image from its tag to its blobs, as a client of the registry does.
func TestRegistryHasAllOfAnImage(t *testing.T) {
	tree := &oci.Tree{}
	image := oci.Image{Name: "pause:testing", Layers: [][]byte{[]byte("layer")}}
	require.NoError(t, addToRegistry(tree, "pause", "testing", image))
	layer, err := tree.Layer()
	require.NoError(t, err)
	files := map[string][]byte{}
	for archive := tar.NewReader(bytes.NewReader(layer)); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		files["/"+header.Name], err = io.ReadAll(archive)
		require.NoError(t, err)
	}
	tag := digest.Digest(bytes.TrimSpace(files["/var/registry/pause/manifests/testing"]))
	require.NoError(t, tag.Validate())
	text := files[registryPath("pause", "manifests", tag)]
	require.Equal(t, tag, digest.FromBytes(text))
	var manifest ocispec.Manifest
	require.NoError(t, json.Unmarshal(text, &manifest))
	require.NotEmpty(t, manifest.MediaType, "the server reads it from the manifest")
	require.Len(t, manifest.Layers, 1)
	for _, blob := range append(manifest.Layers, manifest.Config) {
		require.Equal(t, blob.Digest, digest.FromBytes(files[registryPath("pause", "blobs", blob.Digest)]))
	}
}
