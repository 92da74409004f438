package imagestore

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

// zeros is a stream of n zero bytes.
func zeros(n int64) io.Reader { return io.LimitReader(zeroReader{}, n) }

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// zeroTar writes a tar with one entry of zero bytes.
func zeroTar(t *testing.T, w io.Writer, header tar.Header) {
	t.Helper()
	out := tar.NewWriter(w)
	require.NoError(t, out.WriteHeader(&header))
	_, err := io.Copy(out, zeros(header.Size))
	require.NoError(t, err)
	require.NoError(t, out.Close())
}

func TestImportIsBounded(t *testing.T) {
	const mib = 1 << 20
	bomb := func(compress func(w io.Writer) io.WriteCloser, size int64) []byte {
		var out bytes.Buffer
		w := compress(&out)
		zeroTar(t, w, tar.Header{Name: "blobs/sha256/a", Typeflag: tar.TypeReg, Size: size})
		require.NoError(t, w.Close())
		return out.Bytes()
	}
	gzipBomb := bomb(func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }, ratioFrom+mib)
	zstdBomb := bomb(func(w io.Writer) io.WriteCloser {
		out, err := zstd.NewWriter(w)
		require.NoError(t, err)
		return out
	}, ratioFrom+mib)
	plain := bomb(func(w io.Writer) io.WriteCloser { return nopCloser{w} }, 2*mib)

	var many bytes.Buffer
	files := tar.NewWriter(&many)
	for i := range maxArchiveEntries + 1 {
		require.NoError(t, files.WriteHeader(&tar.Header{Name: fmt.Sprint(i), Typeflag: tar.TypeDir}))
	}
	require.NoError(t, files.Close())

	named := func(header tar.Header) []byte {
		var out bytes.Buffer
		zeroTar(t, &out, header)
		return out.Bytes()
	}
	tests := map[string]struct {
		archive []byte
		max     int64
		want    error
		says    string
	}{
		"gzip bomb":             {gzipBomb, 0, ErrTooLarge, "compressed more than 200 times"},
		"zstd bomb":             {zstdBomb, 0, ErrTooLarge, "compressed more than 200 times"},
		"more than --max-size":  {plain, mib, ErrTooLarge, "--max-size"},
		"endless stream":        {append(layoutTar(t, built(t, "a.example/one:v1", "")), make([]byte, 4*mib)...), mib, ErrTooLarge, "--max-size"},
		"many files":            {many.Bytes(), 0, ErrTooLarge, "100000 files"},
		"a name above":          {named(tar.Header{Name: "../../etc/passwd", Typeflag: tar.TypeReg}), 0, ErrUnsafeName, "etc/passwd"},
		"an absolute name":      {named(tar.Header{Name: "/etc/passwd", Typeflag: tar.TypeReg}), 0, ErrUnsafeName, "/etc/passwd"},
		"a link above":          {named(tar.Header{Name: "a", Linkname: "../b", Typeflag: tar.TypeSymlink}), 0, ErrUnsafeName, "../b"},
		"an absolute link":      {named(tar.Header{Name: "a", Linkname: "/b", Typeflag: tar.TypeSymlink}), 0, ErrUnsafeName, "/b"},
		"a hard link above":     {named(tar.Header{Name: "a", Linkname: "x/../../b", Typeflag: tar.TypeLink}), 0, ErrUnsafeName, "x/../../b"},
		"the cluster's sandbox": {layoutTar(t, built(t, PauseName("v1"), "")), 0, ErrReserved, "--name"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := readArchive(t.Context(), contentStore(t), bytes.NewReader(tt.archive), ImportOptions{MaxBytes: tt.max})
			require.ErrorIs(t, err, tt.want)
			require.ErrorContains(t, err, tt.says)
		})
	}
}

func TestLayersAreBoundedBeforeTheyAreUnpacked(t *testing.T) {
	image := built(t, "a.example/one:v1", "")
	var layer bytes.Buffer
	zeroTar(t, &layer, tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Size: 8 << 20})
	bomb, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil })
	require.NoError(t, err)
	image.Image, err = mutate.AppendLayers(image.Image, bomb)
	require.NoError(t, err)
	archive := layoutTar(t, image)
	require.Less(t, len(archive), 4<<20, "the layer is compressed within the archive")
	_, err = readArchive(t.Context(), contentStore(t), bytes.NewReader(archive), ImportOptions{MaxBytes: 4 << 20})
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorContains(t, err, "layer sha256:")
	_, err = readArchive(t.Context(), contentStore(t), bytes.NewReader(archive), ImportOptions{})
	require.NoError(t, err)
}

// TestHolesOfLayersAreBounded has a layer that is small, with a file of which it has nothing but a hole.
func TestHolesOfLayersAreBounded(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "hole"), nil, 0o600))
	require.NoError(t, os.Truncate(filepath.Join(dir, "hole"), 1<<30))
	layer, err := exec.CommandContext(t.Context(), "tar", "--sparse", "-C", dir, "-cf", "-", "hole").Output()
	require.NoError(t, err)
	image := built(t, "a.example/one:v1", "")
	image.Image, err = mutate.AppendLayers(image.Image, static.NewLayer(layer, types.OCIUncompressedLayer))
	require.NoError(t, err)
	archive := layoutTar(t, image)
	require.Less(t, len(archive), 1<<20)
	_, err = readArchive(t.Context(), contentStore(t), bytes.NewReader(archive), ImportOptions{MaxBytes: 1 << 29})
	require.ErrorIs(t, err, ErrTooLarge)
	_, err = readArchive(t.Context(), contentStore(t), bytes.NewReader(archive), ImportOptions{MaxBytes: 1 << 31})
	require.NoError(t, err)
}

// FuzzArchive reads arbitrary archives: whatever they hold, they are images or refused.
func FuzzArchive(f *testing.F) {
	image, err := Build(BuildSpec{Name: "a.example/one:v1", Binary: []byte("program"), Path: "/x"})
	require.NoError(f, err)
	var out bytes.Buffer
	require.NoError(f, WriteTar(&out, image))
	f.Add(out.Bytes())
	f.Add(out.Bytes()[:len(out.Bytes())/2])
	f.Add([]byte{0x1f, 0x8b, 8, 0})
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd})
	store := contentStore(f) // one for all: containerd's holds a file until a garbage collection
	f.Fuzz(func(t *testing.T, archive []byte) {
		found, err := readArchive(t.Context(), store, bytes.NewReader(archive), ImportOptions{MaxBytes: 16 << 20})
		if err == nil {
			require.NotEmpty(t, found)
		}
	})
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }
