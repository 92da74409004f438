package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Image is one image: its layers, lowest first, as [Tree.Layer] gives them, and how it runs.
type Image struct {
	// Name is the full name with its tag.
	Name string
	// Layers are plain tars.
	Layers [][]byte
	// Config is the entrypoint, command, user and so on.
	Config ocispec.ImageConfig
}

// Annotations by which an archive names an image: containerd's, which may hold a full name, and OCI's.
const (
	annotationName = "io.containerd.image.name"
	annotationRef  = ocispec.AnnotationRefName
)

// Layout is a directory with an OCI layout.
type Layout struct{ dir string }

// Open is the layout in a directory that [Write] filled.
func Open(dir string) Layout { return Layout{dir: dir} }

// Dir is the layout's directory.
func (l Layout) Dir() string { return l.dir }

// Write makes dir an OCI layout with these images and nothing else. A layer that images share is written once.
func Write(dir string, images []Image) error {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("clear image layout: %w", err)
	}
	layout := Open(dir)
	if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o755); err != nil {
		return fmt.Errorf("make image layout: %w", err)
	}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	for _, image := range images {
		descriptor, err := layout.image(image)
		if err != nil {
			return fmt.Errorf("write image %q: %w", image.Name, err)
		}
		index.Manifests = append(index.Manifests, descriptor)
	}
	data, err := json.Marshal(index)
	if err != nil {
		return fmt.Errorf("encode image index: %w", err)
	}
	marker := []byte(`{"imageLayoutVersion":"1.0.0"}`)
	return errors.Join(os.WriteFile(filepath.Join(dir, "index.json"), data, 0o644),
		os.WriteFile(filepath.Join(dir, "oci-layout"), marker, 0o644))
}

func (l Layout) image(image Image) (ocispec.Descriptor, error) {
	config := ocispec.Image{
		Created: &epoch, Platform: ocispec.Platform{Architecture: runtime.GOARCH, OS: "linux"}, Config: image.Config,
		RootFS: ocispec.RootFS{Type: "layers"},
	}
	manifest := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	for _, layer := range image.Layers {
		descriptor, err := l.blob(ocispec.MediaTypeImageLayer, layer)
		if err != nil {
			return ocispec.Descriptor{}, err
		}
		manifest.Layers = append(manifest.Layers, descriptor)
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, descriptor.Digest)
	}
	var err error
	if manifest.Config, err = l.object(ocispec.MediaTypeImageConfig, config); err != nil {
		return ocispec.Descriptor{}, err
	}
	descriptor, err := l.object(ocispec.MediaTypeImageManifest, manifest)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	descriptor.Platform = &config.Platform
	descriptor.Annotations = map[string]string{annotationName: image.Name, annotationRef: image.Name}
	return descriptor, nil
}

func (l Layout) object(mediaType string, object any) (ocispec.Descriptor, error) {
	data, err := json.Marshal(object)
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("encode %s: %w", mediaType, err)
	}
	return l.blob(mediaType, data)
}

func (l Layout) blob(mediaType string, data []byte) (ocispec.Descriptor, error) {
	descriptor := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	path := l.BlobPath(descriptor.Digest)
	if _, err := os.Stat(path); err == nil {
		return descriptor, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return descriptor, err
	}
	return descriptor, os.WriteFile(path, data, 0o644)
}

// BlobPath is the file of a blob, whether it exists or not. The digest must be valid.
func (l Layout) BlobPath(d digest.Digest) string {
	return filepath.Join(l.dir, "blobs", d.Algorithm().String(), d.Encoded())
}

// Manifests are the layout's images by their names.
func (l Layout) Manifests() (map[string]ocispec.Descriptor, error) {
	data, err := os.ReadFile(filepath.Join(l.dir, "index.json"))
	if err != nil {
		return nil, fmt.Errorf("read image layout: %w", err)
	}
	var index ocispec.Index
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, fmt.Errorf("read image layout %q: %w", l.dir, err)
	}
	byName := make(map[string]ocispec.Descriptor, len(index.Manifests))
	for _, descriptor := range index.Manifests {
		byName[descriptor.Annotations[annotationName]] = descriptor
	}
	return byName, nil
}
