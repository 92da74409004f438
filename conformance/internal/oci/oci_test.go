package oci_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-dev/berth/conformance/internal/oci"
)

func tree() *oci.Tree {
	t := &oci.Tree{}
	t.File("/usr/bin/program", 0o4755, []byte("program"))
	t.Symlink("/bin/link", "../usr/bin/program")
	t.Dir("/tmp", 0o1777)
	return t
}

func TestLayerHoldsParentsModesAndLinks(t *testing.T) {
	layer, err := tree().Layer()
	if err != nil {
		t.Fatal(err)
	}
	type file struct {
		mode int64
		kind byte
		link string
	}
	want := map[string]file{
		"bin/": {0o755, tar.TypeDir, ""}, "bin/link": {0o777, tar.TypeSymlink, "../usr/bin/program"},
		"tmp/": {0o1777, tar.TypeDir, ""}, "usr/": {0o755, tar.TypeDir, ""}, "usr/bin/": {0o755, tar.TypeDir, ""},
		"usr/bin/program": {0o4755, tar.TypeReg, ""},
	}
	reader := tar.NewReader(bytes.NewReader(layer))
	seen := 0
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		seen++
		got := file{header.Mode, header.Typeflag, header.Linkname}
		if got != want[header.Name] {
			t.Errorf("%s is %+v, want %+v", header.Name, got, want[header.Name])
		}
	}
	if seen != len(want) {
		t.Errorf("%d entries, want %d", seen, len(want))
	}
}

func TestSameContentGivesSameDigest(t *testing.T) {
	var digests []string
	for range 2 {
		layer, err := tree().Layer()
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), "layout")
		images := []oci.Image{
			{Name: "example.test/a:1", Layers: [][]byte{layer}, Config: ocispec.ImageConfig{Cmd: []string{"program"}}},
			{Name: "example.test/b:1", Layers: [][]byte{layer}},
		}
		if err := oci.Write(dir, images); err != nil {
			t.Fatal(err)
		}
		manifests, err := oci.Open(dir).Manifests()
		if err != nil {
			t.Fatal(err)
		}
		if len(manifests) != 2 {
			t.Fatalf("%d manifests, want 2", len(manifests))
		}
		digests = append(digests, manifests["example.test/a:1"].Digest.String())
		blobs, err := os.ReadDir(filepath.Join(dir, "blobs", "sha256"))
		if err != nil {
			t.Fatal(err)
		}
		if len(blobs) != 5 {
			t.Errorf("%d blobs, want 5: one layer that both share, two configs, two manifests", len(blobs))
		}
	}
	if digests[0] != digests[1] {
		t.Errorf("digests differ: %v", digests)
	}
}

func TestManifestNamesTheImagesConfig(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "layout")
	config := ocispec.ImageConfig{User: "1234", Entrypoint: []string{"/program"}}
	image := oci.Image{Name: "example.test/a:1", Config: config}
	if err := oci.Write(dir, []oci.Image{image}); err != nil {
		t.Fatal(err)
	}
	layout := oci.Open(dir)
	manifests, err := layout.Manifests()
	if err != nil {
		t.Fatal(err)
	}
	var manifest ocispec.Manifest
	read(t, layout.BlobPath(manifests[image.Name].Digest), &manifest)
	var written ocispec.Image
	read(t, layout.BlobPath(manifest.Config.Digest), &written)
	if written.Config.User != "1234" || written.OS != "linux" {
		t.Errorf("config is %+v", written)
	}
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}
