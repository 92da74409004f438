package imagestore

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"path/filepath"
	"slices"
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
		return 0, tooLarge(b.limit)
	case b.n > ratioFrom && b.n > maxRatio*b.source.n:
		return 0, fmt.Errorf("%w: it is compressed more than %d times: %d bytes became %d", ErrTooLarge, maxRatio, b.source.n, b.n)
	}
	return n, err
}

// checkedTar passes on the files of a tar whose entries are few and have names within it. It has them as containerd reads archives, which
// knows of files and of symbolic links to them alone, and their names as they are in a manifest: whatever else the program that made the
// archive has put into it (directories, comments, labels, sparse files) is left out or made a file.
type checkedTar struct {
	in      *tar.Reader
	out     *tar.Writer
	ready   bytes.Buffer // what out has written and no Read has returned
	entries int
	open    bool // whether in is within an entry
	ended   bool
	files   map[string]bool
	links   map[string]string // of symbolic and hard links, the names that they lead to
	left    int64             // how much the files may have; the holes of sparse ones are not in the archive
	limit   int64
}

// isFile reports whether an entry of a tar is a file.
func isFile(header *tar.Header) bool {
	return slices.Contains([]byte{tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse}, header.Typeflag)
}

const (
	// copySize is how much of an entry is passed on at a time.
	copySize = 256 << 10
	// maxLinks is how many links may lead from one to the next.
	maxLinks = 40
)

func newCheckedTar(r io.Reader, limit int64) *checkedTar {
	c := &checkedTar{in: tar.NewReader(r), files: map[string]bool{}, links: map[string]string{}, left: limit, limit: limit}
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
		return errors.Join(c.passLinks(), c.out.Close())
	}
	if err != nil {
		return err
	}
	if c.entries++; c.entries > maxArchiveEntries {
		return fmt.Errorf("%w: it has more than %d files", ErrTooLarge, maxArchiveEntries)
	}
	return c.begin(header)
}

// begin passes on the header of a file, and keeps a link for the end.
func (c *checkedTar) begin(header *tar.Header) error {
	name := path.Clean(header.Name)
	if isFile(header) {
		if err := checkNames(header.Name); err != nil {
			return err
		}
		if c.left -= header.Size; c.left < 0 {
			return tooLarge(c.limit)
		}
		c.files[name], c.open = true, true
		delete(c.links, name)
		return c.out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: header.Size, Mode: 0o600})
	}
	switch header.Typeflag {
	case tar.TypeSymlink:
		target := path.Join(path.Dir(name), header.Linkname)
		c.links[name] = target
		if path.IsAbs(header.Linkname) {
			target = header.Linkname
		}
		return checkNames(header.Name, target)
	case tar.TypeLink:
		c.links[name] = path.Clean(header.Linkname)
		return checkNames(header.Name, header.Linkname)
	case tar.TypeDir, tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return checkNames(header.Name)
	}
	return nil // it is no file, and its name none of one
}

// passLinks passes on the links that lead to files.
func (c *checkedTar) passLinks() error {
	for _, name := range slices.Sorted(maps.Keys(c.links)) {
		target := c.links[name]
		for range maxLinks {
			if next, isLink := c.links[target]; isLink {
				target = next
			}
		}
		if _, isLink := c.links[target]; isLink || !c.files[target] {
			continue
		}
		relative, err := filepath.Rel(path.Dir(name), target)
		if err != nil {
			return err
		}
		if err := c.out.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: relative, Mode: 0o600}); err != nil {
			return err
		}
	}
	return nil
}

func checkNames(names ...string) error {
	for _, name := range names {
		if !isWithin(name) {
			return fmt.Errorf("%w: %.200q", ErrUnsafeName, name)
		}
	}
	return nil
}

func tooLarge(limit int64) error {
	return fmt.Errorf("%w: it has more than %d bytes decompressed (--max-size)", ErrTooLarge, limit)
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
	sum := &layerSum{left: limit, files: limit}
	for _, layer := range manifest.Layers {
		if err := checkLayer(ctx, store, layer, limit, sum); err != nil {
			return fmt.Errorf("layer %s: %w", layer.Digest, err)
		}
	}
	return nil
}

// layerSum is what the layers of an image so far leave of the limits.
type layerSum struct {
	left    int64 // of their bytes, decompressed
	files   int64 // of the bytes of their files, of which sparse ones have more than the layer
	entries int   // so far
}

func checkLayer(ctx context.Context, store content.Store, layer ocispec.Descriptor, limit int64, sum *layerSum) (err error) {
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
	files := tar.NewReader(&boundedReader{r: plain, source: source, left: &sum.left, limit: limit})
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if sum.entries++; sum.entries > maxLayerEntries {
			return fmt.Errorf("%w: it has more than %d files", ErrTooLarge, maxLayerEntries)
		}
		if isFile(header) {
			if sum.files -= header.Size; sum.files < 0 {
				return tooLarge(limit)
			}
		}
	}
}
