package imagestore

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/berth-dev/berth/internal/contain"
)

// Annotations by which an archive names its images.
const (
	// annotationName is containerd's: the full name.
	annotationName = "io.containerd.image.name"
	// annotationRef is OCI's: by the specification a tag, by the habit of many tools the full name.
	annotationRef = "org.opencontainers.image.ref.name"
)

// WriteTar writes the images as one OCI layout in a tar, which [Store.Import] and other tools read.
func WriteTar(w io.Writer, images ...Built) error {
	out := &layoutWriter{tar: tar.NewWriter(w), written: map[v1.Hash]bool{}}
	if err := out.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{}}
	for _, image := range images {
		descriptor, err := out.image(image)
		if err != nil {
			return fmt.Errorf("write image %q: %w", image.Name, err)
		}
		index.Manifests = append(index.Manifests, descriptor)
	}
	data, err := json.Marshal(index)
	if err != nil {
		return fmt.Errorf("encode image index: %w", err)
	}
	if err := out.file("index.json", data); err != nil {
		return err
	}
	return out.tar.Close()
}

// layoutWriter writes the files of an OCI layout, each blob once.
type layoutWriter struct {
	tar     *tar.Writer
	written map[v1.Hash]bool
}

func (w *layoutWriter) file(name string, data []byte) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: epoch}
	if err := w.tar.WriteHeader(header); err != nil {
		return err
	}
	_, err := w.tar.Write(data)
	return err
}

func (w *layoutWriter) image(built Built) (v1.Descriptor, error) {
	layers, err := built.Image.Layers()
	if err != nil {
		return v1.Descriptor{}, err
	}
	for _, layer := range layers {
		if err := w.layer(layer); err != nil {
			return v1.Descriptor{}, err
		}
	}
	for _, part := range []struct {
		digest func() (v1.Hash, error)
		data   func() ([]byte, error)
	}{
		{built.Image.ConfigName, built.Image.RawConfigFile},
		{built.Image.Digest, built.Image.RawManifest},
	} {
		digest, err := part.digest()
		if err != nil {
			return v1.Descriptor{}, err
		}
		data, err := part.data()
		if err != nil {
			return v1.Descriptor{}, err
		}
		if w.written[digest] {
			continue
		}
		w.written[digest] = true
		if err := w.file(blobPath(digest), data); err != nil {
			return v1.Descriptor{}, err
		}
	}
	descriptor, err := partial.Descriptor(built.Image)
	if err != nil {
		return v1.Descriptor{}, err
	}
	config, err := built.Image.ConfigFile()
	if err != nil {
		return v1.Descriptor{}, err
	}
	descriptor.Platform = config.Platform()
	descriptor.Annotations = map[string]string{annotationName: built.Name, annotationRef: built.Name}
	return *descriptor, nil
}

func (w *layoutWriter) layer(layer v1.Layer) (err error) {
	digest, err := layer.Digest()
	if err != nil || w.written[digest] {
		return err
	}
	w.written[digest] = true
	size, err := layer.Size()
	if err != nil {
		return err
	}
	// Compressed is the library's word for "as it is transferred": here the plain tar.
	data, err := layer.Compressed()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	header := &tar.Header{Typeflag: tar.TypeReg, Name: blobPath(digest), Mode: 0o644, Size: size, ModTime: epoch}
	if err := w.tar.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(w.tar, data)
	return err
}

func blobPath(digest v1.Hash) string { return "blobs/" + digest.Algorithm + "/" + digest.Hex }

// FromPath opens an archive for [Store.Import]: a file as it is, a directory with an OCI layout as a tar of it.
// The caller closes it; closing early is fine.
func FromPath(name string) (io.ReadCloser, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open image archive: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open image archive: %w", err), file.Close())
	}
	if !info.IsDir() {
		return file, nil
	}
	if err := file.Close(); err != nil {
		return nil, fmt.Errorf("open image archive: %w", err)
	}
	if _, err := os.Stat(filepath.Join(name, "oci-layout")); err != nil {
		return nil, fmt.Errorf("directory %q is not an OCI layout, it has no file oci-layout: %w", name, err)
	}
	return tarOf(name), nil
}

// dirReader is a directory read as a tar that one goroutine writes; Close ends and joins it.
type dirReader struct {
	*io.PipeReader
	done chan struct{}
}

func tarOf(dir string) *dirReader {
	reader, writer := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		writer.CloseWithError(contain.Do("imagestore.tar", dir, func() error {
			out := tar.NewWriter(writer)
			if err := out.AddFS(os.DirFS(dir)); err != nil {
				return err
			}
			return out.Close()
		}))
	}()
	return &dirReader{PipeReader: reader, done: done}
}

// Close makes the writer's next write fail, and waits until it has ended.
func (r *dirReader) Close() error {
	err := r.PipeReader.Close()
	<-r.done
	return err
}

var _ io.ReadCloser = (*dirReader)(nil)
