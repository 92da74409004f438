package imagestore

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Errors of an archive, for errors.Is. Each is wrapped in what was found.
var (
	// ErrNotArchive: the input is not a tar, nor a gzip or zstd of one.
	ErrNotArchive = errors.New("not a tar archive (plain, gzip or zstd)")
	// ErrIncomplete: the input ends early, or lacks a file that its manifest names.
	ErrIncomplete = errors.New("archive is incomplete")
	// ErrNoManifest: the input is a tar, but of no image.
	ErrNoManifest = errors.New("archive holds no image: it has neither an OCI layout (oci-layout, index.json) " +
		"nor a docker manifest (manifest.json)")
	// ErrPlatform: the archive has images, and none for this machine.
	ErrPlatform = errors.New("image is for another platform")
	// ErrNoName: the archive does not say what its image is called, and the caller did not.
	ErrNoName = errors.New("archive does not name its image: give a name")
)

// namedImage is one image of an archive.
type namedImage struct {
	name   string
	target ocispec.Descriptor
}

// readArchive puts the archive's content into store and returns the images that it names, each complete and for
// this machine. The caller holds a lease: nothing here protects the content.
func readArchive(ctx context.Context, store content.Store, r io.Reader, options ImportOptions) ([]namedImage, error) {
	input := &countingReader{r: r}
	plain, err := compression.DecompressStream(input)
	if err != nil {
		return nil, archiveError(input, err)
	}
	limit := options.maxBytes()
	left := limit
	bounded := &boundedReader{r: plain, source: input, left: &left, limit: limit}
	target, err := archive.ImportIndex(ctx, store, newCheckedTar(bounded, limit))
	if err == nil {
		// What follows the tar's end is read as well: there, a compressed stream has its checksum.
		_, err = io.Copy(io.Discard, bounded)
	}
	if err = errors.Join(err, plain.Close()); err != nil {
		return nil, archiveError(input, err)
	}
	found, err := nameImages(ctx, store, target, options.Name)
	if err != nil {
		return nil, err
	}
	for i := range found {
		if !options.own && strings.HasPrefix(found[i].name, ownPrefix) {
			return nil, fmt.Errorf("image %q: %w: give another (--name)", found[i].name, ErrReserved)
		}
		if err := checkImage(ctx, store, &found[i]); err != nil {
			return nil, fmt.Errorf("image %q: %w", found[i].name, err)
		}
		if err := checkLayers(ctx, store, &found[i], options.maxBytes()); err != nil {
			return nil, fmt.Errorf("image %q: %w", found[i].name, err)
		}
	}
	return found, nil
}

// archiveError says what an error of the tar or of its decompression means.
func archiveError(input *countingReader, err error) error {
	switch {
	case input.err != nil:
		return fmt.Errorf("read image archive: %w", input.err)
	case errors.Is(err, ErrTooLarge), errors.Is(err, ErrUnsafeName):
		return err
	case input.n == 0:
		return fmt.Errorf("%w: it is empty", ErrNotArchive)
	case errors.Is(err, tar.ErrHeader):
		return ErrNotArchive
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: it ends after %d bytes, in the middle of a file", ErrIncomplete, input.n)
	}
	// The library has no values for these, only words.
	switch text := err.Error(); {
	case strings.Contains(text, "unrecognized image format"):
		return ErrNoManifest
	case strings.Contains(text, "missing index.json"), strings.Contains(text, "not found"):
		return fmt.Errorf("%w: %w", ErrIncomplete, err)
	}
	return fmt.Errorf("read image archive: %w", err)
}

// nameImages reads the archive's index and gives each image its full name.
func nameImages(ctx context.Context, store content.Store, target ocispec.Descriptor, name string) ([]namedImage, error) {
	data, err := content.ReadBlob(ctx, store, target)
	if err != nil {
		return nil, fmt.Errorf("read image index: %w", err)
	}
	var index ocispec.Index
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, fmt.Errorf("decode image index: %w", err)
	}
	if len(index.Manifests) == 0 {
		return nil, fmt.Errorf("%w: its index is empty", ErrNoManifest)
	}
	if name != "" {
		one, err := singleImage(index, target)
		if err != nil {
			return nil, err
		}
		name, err = fullName(name)
		return []namedImage{{name: name, target: one}}, err
	}
	var found []namedImage
	for _, manifest := range index.Manifests {
		given := manifest.Annotations[annotationName]
		if ref := manifest.Annotations[annotationRef]; given == "" && strings.ContainsAny(ref, "/:") {
			given = ref // A bare tag is no name.
		}
		if given == "" {
			continue
		}
		full, err := fullName(given)
		if err != nil {
			return nil, err
		}
		found = append(found, namedImage{name: full, target: manifest})
	}
	if len(found) == 0 {
		return nil, ErrNoName
	}
	return found, nil
}

// singleImage is the archive's one image, if it has one: a single manifest under whatever names, or manifests without
// names, which are then one image for several platforms.
func singleImage(index ocispec.Index, target ocispec.Descriptor) (ocispec.Descriptor, error) {
	first, several := index.Manifests[0], false
	var names []string
	for _, manifest := range index.Manifests {
		several = several || manifest.Digest != first.Digest
		if name := manifest.Annotations[annotationName]; name != "" {
			names = append(names, name)
		}
	}
	switch {
	case !several:
		return first, nil
	case len(names) == 0:
		return target, nil
	}
	return ocispec.Descriptor{}, fmt.Errorf("archive holds several images (%s): import it without a name",
		strings.Join(names, ", "))
}

// checkImage makes sure that the image can run here: it has content for this platform, and all of it.
func checkImage(ctx context.Context, store content.Store, image *namedImage) error {
	found, err := images.Platforms(ctx, store, image.target)
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("%w: %w", ErrIncomplete, err)
	}
	if err != nil {
		return fmt.Errorf("read its platforms: %w", err)
	}
	host, matches := platforms.Default(), false
	var have []string
	for _, platform := range found {
		matches = matches || host.Match(platform)
		have = append(have, platforms.Format(platform))
	}
	if !matches {
		return fmt.Errorf("%w: wanted %s, found %s", ErrPlatform, platforms.DefaultString(), strings.Join(have, ", "))
	}
	_, _, _, missing, err := images.Check(ctx, store, image.target, host)
	switch {
	case len(missing) > 0:
		return fmt.Errorf("%w: it lacks blobs/%s", ErrIncomplete,
			strings.ReplaceAll(missing[0].Digest.String(), ":", "/"))
	case errdefs.IsNotFound(err):
		return fmt.Errorf("%w: %w", ErrIncomplete, err)
	case err != nil:
		return fmt.Errorf("check its content: %w", err)
	}
	return nil
}

// fullName is a name as Kubernetes resolves it: with a host, and with the tag "latest" if it has none.
func fullName(name string) (string, error) {
	full, err := reference.ParseDockerRef(name)
	if err != nil {
		return "", fmt.Errorf("image name %q: %w", name, err)
	}
	return full.String(), nil
}

// countingReader counts what was read, and keeps a failure of the source apart from one of its content.
type countingReader struct {
	r   io.Reader
	n   int64
	err error
}

// Read implements io.Reader.
func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}

var _ io.Reader = (*countingReader)(nil)
