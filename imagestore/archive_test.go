package imagestore

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
)

// foreignArch is an architecture that this machine is not.
func foreignArch() string {
	if runtime.GOARCH == "s390x" {
		return "arm64"
	}
	return "s390x"
}

func built(t testing.TB, name, arch string) Built {
	image, err := Build(BuildSpec{Name: name, Binary: []byte("program of " + name), Path: "/x", Arch: arch})
	require.NoError(t, err)
	return image
}

func layoutTar(t testing.TB, images ...Built) []byte {
	var out bytes.Buffer
	require.NoError(t, WriteTar(&out, images...))
	return out.Bytes()
}

// dockerTar is what "docker save" writes.
func dockerTar(t testing.TB, image Built, tag string) []byte {
	var out bytes.Buffer
	ref, err := name.NewTag(tag)
	require.NoError(t, err)
	require.NoError(t, tarball.Write(ref, image.Image, &out))
	return out.Bytes()
}

// rewrite rewrites a tar; entry writes what is to be in the place of one.
func rewrite(t testing.TB, archive []byte, entry func(writer *tar.Writer, header *tar.Header, data []byte)) []byte {
	var out bytes.Buffer
	writer := tar.NewWriter(&out)
	for reader := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := reader.Next()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		data, err := io.ReadAll(reader)
		require.NoError(t, err)
		entry(writer, header, data)
	}
	require.NoError(t, writer.Close())
	return out.Bytes()
}

// edit rewrites a tar; change returns the new content, or nil to leave the file out.
func edit(t testing.TB, archive []byte, change func(name string, data []byte) []byte) []byte {
	return rewrite(t, archive, func(writer *tar.Writer, header *tar.Header, data []byte) {
		if data = change(header.Name, data); data == nil {
			return
		}
		header.Size = int64(len(data))
		require.NoError(t, writer.WriteHeader(header))
		_, err := writer.Write(data)
		require.NoError(t, err)
	})
}

func without(t testing.TB, archive []byte, part string) []byte {
	return edit(t, archive, func(name string, data []byte) []byte {
		if strings.Contains(name, part) {
			return nil
		}
		return data
	})
}

func unnamed(t testing.TB, archive []byte) []byte {
	return edit(t, archive, func(name string, data []byte) []byte {
		if name != "index.json" {
			return data
		}
		data = bytes.ReplaceAll(data, []byte(annotationName), []byte("x.name"))
		return bytes.ReplaceAll(data, []byte(annotationRef), []byte("x.ref"))
	})
}

func gzipped(t testing.TB, data []byte) []byte {
	var out bytes.Buffer
	writer := gzip.NewWriter(&out)
	_, err := writer.Write(data)
	require.NoError(t, err)
	require.NoError(t, writer.Close())
	return out.Bytes()
}

func zstandard(t testing.TB, data []byte) []byte {
	writer, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	defer writer.Close()
	return writer.EncodeAll(data, nil)
}

func contentStore(t testing.TB) content.Store {
	store, err := local.NewStore(t.TempDir())
	require.NoError(t, err)
	return store
}

func TestReadArchive(t *testing.T) {
	one, two := built(t, "berth.local/one:v1", ""), built(t, "berth.local/two:v1", "")
	other := built(t, "berth.local/one:v1", foreignArch())
	oci, docker := layoutTar(t, one), dockerTar(t, one, "docker.io/library/saved:v2")
	configDigest, err := one.Image.ConfigName()
	require.NoError(t, err)
	layers, err := one.Image.Layers()
	require.NoError(t, err)
	layerDigest, err := layers[0].Digest()
	require.NoError(t, err)

	for name, tt := range map[string]struct {
		archive []byte
		name    string
		want    []string
		is      error
		says    string
	}{
		"OCI layout":              {archive: oci, want: []string{"berth.local/one:v1"}},
		"two images":              {archive: layoutTar(t, one, two), want: []string{"berth.local/one:v1", "berth.local/two:v1"}},
		"docker":                  {archive: docker, want: []string{"docker.io/library/saved:v2"}},
		"gzip":                    {archive: gzipped(t, oci), want: []string{"berth.local/one:v1"}},
		"zstd":                    {archive: zstandard(t, docker), want: []string{"docker.io/library/saved:v2"}},
		"renamed":                 {archive: oci, name: "mine", want: []string{"docker.io/library/mine:latest"}},
		"named by the caller":     {archive: unnamed(t, oci), name: "mine:v3", want: []string{"docker.io/library/mine:v3"}},
		"no name":                 {archive: unnamed(t, oci), is: ErrNoName},
		"one name for two":        {archive: layoutTar(t, one, two), name: "mine", says: "berth.local/one:v1, berth.local/two:v1"},
		"bad name":                {archive: oci, name: "NO", says: `image name "NO"`},
		"empty":                   {archive: []byte{}, is: ErrNotArchive, says: "it is empty"},
		"text":                    {archive: bytes.Repeat([]byte("not a tar\n"), 100), is: ErrNotArchive},
		"short text":              {archive: []byte("hello"), is: ErrIncomplete},
		"tar of something else":   {archive: without(t, without(t, oci, "oci-layout"), "index.json"), is: ErrNoManifest},
		"no index":                {archive: without(t, oci, "index.json"), is: ErrIncomplete, says: "index.json"},
		"empty index":             {archive: layoutTar(t), is: ErrNoManifest},
		"truncated":               {archive: oci[:700], is: ErrIncomplete},
		"truncated between files": {archive: oci[:1024], is: ErrIncomplete},
		"truncated gzip":          {archive: gzipped(t, oci)[:200], is: ErrIncomplete},
		"gzip without its end":    {archive: gzipped(t, oci)[:len(gzipped(t, oci))-4], is: ErrIncomplete},
		"config missing":          {archive: without(t, oci, configDigest.Hex), is: ErrIncomplete, says: configDigest.Hex},
		"layer missing":           {archive: without(t, oci, layerDigest.Hex), is: ErrIncomplete, says: layerDigest.Hex},
		"docker layer missing":    {archive: without(t, docker, ".tar"), is: ErrIncomplete, says: ".tar"},
		"layer changed": {is: ErrIncomplete, says: layerDigest.Hex,
			archive: edit(t, oci, func(name string, data []byte) []byte {
				return bytes.ReplaceAll(data, []byte("program of"), []byte("PROGRAM OF"))
			})},
		"other architecture": {archive: layoutTar(t, other), is: ErrPlatform,
			says: "wanted linux/" + runtime.GOARCH + ", found linux/" + foreignArch()},
		"docker of another architecture": {archive: dockerTar(t, other, "saved:v2"), is: ErrPlatform,
			says: "found linux/" + foreignArch()},
		"several platforms": {name: "multi:v1", want: []string{"docker.io/library/multi:v1"},
			archive: unnamed(t, layoutTar(t, one, other))},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := readArchive(t.Context(), contentStore(t), bytes.NewReader(tt.archive), ImportOptions{Name: tt.name})
			if tt.want == nil {
				require.Error(t, err)
				if tt.is != nil {
					require.ErrorIs(t, err, tt.is)
				}
				require.ErrorContains(t, err, tt.says)
				require.Empty(t, found)
				return
			}
			require.NoError(t, err)
			var names []string
			for _, image := range found {
				names = append(names, image.name)
			}
			require.Equal(t, tt.want, names)
		})
	}
}

// retar rewrites a tar; change returns the entries in the place of one.
func retar(t testing.TB, archive []byte, change func(header *tar.Header) []*tar.Header) []byte {
	return rewrite(t, archive, func(writer *tar.Writer, header *tar.Header, data []byte) {
		for _, header := range change(header) {
			require.NoError(t, writer.WriteHeader(header))
			if header.Typeflag == tar.TypeReg {
				_, err := writer.Write(data)
				require.NoError(t, err)
			}
		}
	})
}

// TestReadArchivesOfOtherPrograms reads what git archive, GNU tar and older versions of docker write.
func TestReadArchivesOfOtherPrograms(t *testing.T) {
	image := built(t, "berth.local/one:v1", "")
	oci, docker := layoutTar(t, image), dockerTar(t, image, "docker.io/library/saved:v2")
	isLayer := func(header *tar.Header) bool { return strings.Contains(header.Name, ".tar") }
	link := func(kind byte, name, to string) *tar.Header {
		return &tar.Header{Typeflag: kind, Name: name, Linkname: to}
	}
	// aside has the layer under another name, which the manifest does not have.
	aside := func(header *tar.Header, name string) *tar.Header {
		moved := *header
		moved.Name = name
		return &moved
	}
	for name, archive := range map[string][]byte{
		"comment of git archive": retar(t, oci, func(header *tar.Header) []*tar.Header {
			if header.Name != "oci-layout" {
				return []*tar.Header{header}
			}
			return []*tar.Header{{Typeflag: tar.TypeXGlobalHeader, Name: "pax_global_header", PAXRecords: map[string]string{"comment": "c0ffee"}}, header}
		}),
		"global header of GNU tar": retar(t, oci, func(header *tar.Header) []*tar.Header {
			return []*tar.Header{{Typeflag: tar.TypeXGlobalHeader, Name: "/tmp/GlobalHead.1.1", PAXRecords: map[string]string{"mtime": "1"}}, header}
		}),
		"directories, a FIFO and a link to nothing": retar(t, oci, func(header *tar.Header) []*tar.Header {
			return []*tar.Header{header, {Typeflag: tar.TypeDir, Name: "./"}, {Typeflag: tar.TypeFifo, Name: "fifo"}, link(tar.TypeSymlink, "a", "b")}
		}),
		"hard link to a layer": retar(t, docker, func(header *tar.Header) []*tar.Header {
			if !isLayer(header) {
				return []*tar.Header{header}
			}
			return []*tar.Header{aside(header, "./first/layer"), link(tar.TypeLink, "./"+header.Name, "./first/layer")}
		}),
		"link before its layer, with names from the directory": retar(t, docker, func(header *tar.Header) []*tar.Header {
			if !isLayer(header) {
				return []*tar.Header{aside(header, "./"+header.Name)}
			}
			return []*tar.Header{link(tar.TypeSymlink, "./"+header.Name, "sub/second"), link(tar.TypeSymlink, "./sub/second", "../first"), aside(header, "./first")}
		}),
		"link to a directory": retar(t, docker, func(header *tar.Header) []*tar.Header {
			return []*tar.Header{link(tar.TypeSymlink, "latest", "."), header}
		}),
	} {
		t.Run(name, func(t *testing.T) {
			found, err := readArchive(t.Context(), contentStore(t), bytes.NewReader(archive), ImportOptions{Name: "mine:v1"})
			require.NoError(t, err)
			require.Len(t, found, 1)
		})
	}
}

// TestReadArchiveOfGNUTar has holes in its files.
func TestReadArchiveOfGNUTar(t *testing.T) {
	program, err := exec.LookPath("tar")
	require.NoError(t, err)
	image := built(t, "berth.local/one:v1", "")
	dir := t.TempDir()
	index, err := layout.Write(dir, empty.Index)
	require.NoError(t, err)
	var layer bytes.Buffer
	zeroTar(t, &layer, tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Size: 1 << 20})
	image.Image, err = mutate.AppendLayers(image.Image, static.NewLayer(layer.Bytes(), types.OCIUncompressedLayer))
	require.NoError(t, err)
	require.NoError(t, index.AppendImage(image.Image))
	sparse := t.TempDir()
	require.NoError(t, exec.CommandContext(t.Context(), "cp", "-r", "--sparse=always", dir+"/.", sparse).Run())
	for _, format := range []string{"gnu", "oldgnu", "posix"} {
		for _, label := range []string{"", "--label=/backup"} {
			args := []string{"--sparse", "--hole-detection=raw", "--format=" + format, "-C", sparse, "-cf", "-", "."}
			if label != "" {
				args = append([]string{label}, args...)
			}
			archive, err := exec.CommandContext(t.Context(), program, args...).Output()
			require.NoError(t, err)
			require.Less(t, len(archive), 1<<19, "the holes are not in the archive")
			found, err := readArchive(t.Context(), contentStore(t), bytes.NewReader(archive), ImportOptions{Name: "mine:v1"})
			require.NoError(t, err, "%s %s", format, label)
			require.Len(t, found, 1)
			_, err = readArchive(t.Context(), contentStore(t), bytes.NewReader(archive), ImportOptions{Name: "mine:v1", MaxBytes: 1 << 19})
			require.ErrorIs(t, err, ErrTooLarge, "%s %s", format, label)
		}
	}
}

// TestReadArchiveSurvivesAnEarlierFailure: what a truncated archive left must not spoil the whole one after it.
func TestReadArchiveSurvivesAnEarlierFailure(t *testing.T) {
	store := contentStore(t)
	oci := layoutTar(t, built(t, "berth.local/one:v1", ""))
	for end := 600; end < len(oci)-1024; end += 512 {
		_, err := readArchive(t.Context(), store, bytes.NewReader(oci[:end]), ImportOptions{})
		require.Error(t, err, "cut at %d of %d", end, len(oci))
	}
	_, err := readArchive(t.Context(), store, bytes.NewReader(oci), ImportOptions{})
	require.NoError(t, err)
}

func TestReadArchiveReportsTheSource(t *testing.T) {
	broken := errors.New("the disk is broken")
	source := io.MultiReader(bytes.NewReader(layoutTar(t, built(t, "a/b:v1", ""))[:600]), failing{broken})
	_, err := readArchive(t.Context(), contentStore(t), source, ImportOptions{})
	require.ErrorIs(t, err, broken)
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestFromPath(t *testing.T) {
	dir := t.TempDir()
	_, err := FromPath(filepath.Join(dir, "absent"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = FromPath(dir)
	require.ErrorContains(t, err, "not an OCI layout")

	index, err := layout.Write(dir, empty.Index)
	require.NoError(t, err)
	require.NoError(t, index.AppendImage(built(t, "a/b:v1", "").Image))
	archive, err := FromPath(dir)
	require.NoError(t, err)
	found, err := readArchive(t.Context(), contentStore(t), archive, ImportOptions{Name: "from/dir:v1"})
	require.NoError(t, err)
	require.NoError(t, archive.Close())
	require.Equal(t, "docker.io/from/dir:v1", found[0].name)

	early, err := FromPath(dir)
	require.NoError(t, err)
	_, err = early.Read(make([]byte, 10))
	require.NoError(t, err)
	require.NoError(t, early.Close(), "closing early ends the writer")
}

func TestDoomedNames(t *testing.T) {
	store := imagesOf("a/one:v1=1", "a/alias:v1=1", "sha256:c1=1", "a/two:v1=2", "sha256:c2=2")
	for name, want := range map[string][]string{
		"a/one:v1": {"a/one:v1"},
		"a/two:v1": {"sha256:c2", "a/two:v1"},
	} {
		for _, image := range store {
			if image.Name == name {
				require.Equal(t, want, namesToRemove(store, name, image.Target))
			}
		}
	}
}

// imagesOf makes images of "name=content" pairs.
func imagesOf(pairs ...string) []images.Image {
	var all []images.Image
	for _, pair := range pairs {
		name, data, _ := strings.Cut(pair, "=")
		all = append(all, images.Image{Name: name, Target: ocispec.Descriptor{Digest: digest.FromString(data)}})
	}
	return all
}
