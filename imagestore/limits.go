package imagestore

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ErrTooLarge: the archive, or the image unpacked, is beyond the limits of an import.
var ErrTooLarge = errors.New("the archive is beyond the limits of an import")

// ErrUnsafeName: the archive names a file outside of itself.
var ErrUnsafeName = errors.New("the archive names a file outside of itself")

// ErrReserved: the archive holds an image under a name of the cluster's own.
var ErrReserved = errors.New("the name is that of an image of the cluster itself")

// DefaultMaxBytes is the most that an archive may have, decompressed, and its images' layers together, unpacked.
const DefaultMaxBytes = 64 << 30

// Limits of what is in an archive, and in all layers of an image.
const (
	maxArchiveEntries = 100_000
	maxLayerEntries   = 4_000_000
	// maxRatio is how many times larger than its source a decompressed stream may be, once it has ratioFrom bytes: what deflate can
	// do at most is 1032, programs and libraries reach 10.
	maxRatio  = 200
	ratioFrom = 64 << 20
)

// boundedReader fails when a decompressed stream becomes too large, or much larger than what it was decompressed from.
type boundedReader struct {
	r      io.Reader
	source *countingReader
	left   *int64 // of the limit, which several streams may share
	limit  int64
	n      int64
}

// Read implements io.Reader.
func (b *boundedReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.n += int64(n)
	*b.left -= int64(n)
	switch {
	case *b.left < 0:
		return 0, fmt.Errorf("%w: it has more than %d bytes decompressed (--max-size)", ErrTooLarge, b.limit)
	case b.n > ratioFrom && b.n > maxRatio*b.source.n:
		return 0, fmt.Errorf("%w: it is compressed more than %d times: %d bytes became %d", ErrTooLarge, maxRatio, b.source.n, b.n)
	}
	return n, err
}

// checkedTar passes on a tar whose entries are few and have names within it.
type checkedTar struct {
	in      *tar.Reader
	out     *tar.Writer
	ready   bytes.Buffer // what out has written and no Read has returned
	entries int
	open    bool // whether in is within an entry
	ended   bool
}

// copySize is how much of an entry is passed on at a time.
const copySize = 256 << 10

func newCheckedTar(r io.Reader) *checkedTar {
	c := &checkedTar{in: tar.NewReader(r)}
	c.out = tar.NewWriter(&c.ready)
	return c
}

// Read implements io.Reader.
func (c *checkedTar) Read(p []byte) (int, error) {
	for c.ready.Len() == 0 {
		if c.ended {
			return 0, io.EOF
		}
		if err := c.advance(); err != nil {
			return 0, err
		}
	}
	return c.ready.Read(p)
}

// advance passes on the next part of the entry, or the next entry's header, or the end.
func (c *checkedTar) advance() error {
	if c.open {
		_, err := io.CopyN(c.out, c.in, copySize)
		if errors.Is(err, io.EOF) {
			c.open, err = false, nil
		}
		return err
	}
	header, err := c.in.Next()
	if errors.Is(err, io.EOF) {
		c.ended = true
		return c.out.Close()
	}
	if err != nil {
		return err
	}
	if c.entries++; c.entries > maxArchiveEntries {
		return fmt.Errorf("%w: it has more than %d files", ErrTooLarge, maxArchiveEntries)
	}
	names := []string{header.Name}
	switch header.Typeflag {
	case tar.TypeSymlink:
		names = append(names, path.Join(path.Dir(header.Name), header.Linkname))
		if path.IsAbs(header.Linkname) {
			names = append(names, header.Linkname)
		}
	case tar.TypeLink:
		names = append(names, header.Linkname)
	}
	for _, name := range names {
		if !isWithin(name) {
			return fmt.Errorf("%w: %.200q", ErrUnsafeName, name)
		}
	}
	c.open = true
	return c.out.WriteHeader(&tar.Header{Typeflag: header.Typeflag, Name: header.Name, Linkname: header.Linkname, Size: header.Size, Mode: 0o600})
}

// isWithin reports whether a name in an archive is of a file in it.
func isWithin(name string) bool {
	clean := path.Clean(name)
	return !path.IsAbs(clean) && clean != ".." && !strings.HasPrefix(clean, "../") && !strings.ContainsRune(name, 0)
}

var _ io.Reader = (*checkedTar)(nil)

// checkLayers reads the layers of the image for this machine as containerd will unpack them, and fails if they are too large together or
// have too many files.
func checkLayers(ctx context.Context, store content.Store, image *namedImage, limit int64) error {
	manifest, err := images.Manifest(ctx, store, image.target, platforms.Default())
	if err != nil {
		return fmt.Errorf("read its manifest: %w", err)
	}
	left, entries := limit, 0
	for _, layer := range manifest.Layers {
		if err := checkLayer(ctx, store, layer, limit, &left, &entries); err != nil {
			return fmt.Errorf("layer %s: %w", layer.Digest, err)
		}
	}
	return nil
}

func checkLayer(ctx context.Context, store content.Store, layer ocispec.Descriptor, limit int64, left *int64, entries *int) (err error) {
	blob, err := store.ReaderAt(ctx, layer)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, blob.Close()) }()
	source := &countingReader{r: content.NewReader(blob)}
	plain, err := compression.DecompressStream(source)
	if err != nil {
		return fmt.Errorf("decompress: %w", err)
	}
	defer func() { err = errors.Join(err, plain.Close()) }()
	files := tar.NewReader(&boundedReader{r: plain, source: source, left: left, limit: limit})
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		_, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if *entries++; *entries > maxLayerEntries {
			return fmt.Errorf("%w: it has more than %d files", ErrTooLarge, maxLayerEntries)
		}
	}
}
