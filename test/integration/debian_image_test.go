//go:build integration

package integration

import (
	"archive/tar"
	"bytes"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/imagestore"
)

// debianImage has a shell and the servers that the tests of workloads run, from Debian's packages.
const debianImage = "example.test/debian:v1"

// debianPackages are what is in the image, with the libraries that they need.
var debianPackages = []string{
	"base-files", "bash", "dash", "coreutils", "libc-bin", "tzdata",
	"postgresql", "redis-server", "redis-tools", "nginx", "nginx-common",
}

// debsUnreachable is the exit code of hack/debs.sh if the packages cannot be downloaded.
const debsUnreachable = 75

// debianUsers are the users of the servers: PostgreSQL does not run without one.
const debianUsers = "root:x:0:0::/root:/bin/sh\npostgres:x:101:101::/:/bin/sh\nredis:x:102:102::/:/bin/sh\nnginx:x:103:103::/:/bin/sh\n"

var postgresFiles = flag.String("postgres-files", "", "the directory for which TestWritePostgresFiles writes the image and the manifest")

// TestWritePostgresFiles writes the image of Debian and the manifest of one PostgreSQL, for the tests in virtual machines.
func TestWritePostgresFiles(t *testing.T) {
	if *postgresFiles == "" {
		t.Skip("the tests in virtual machines run it")
	}
	archive, err := os.ReadFile(debianArchive(t))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(*postgresFiles, "debian.tar"), archive, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(*postgresFiles, "postgres.yaml"), []byte(postgresManifest(t)), 0o644))
}

// importDebian builds the image and imports it.
func importDebian(t *testing.T, c *cluster) {
	t.Helper()
	require.Contains(t, c.mustRun("images", "import", debianArchive(t)), debianImage)
}

// debianArchive builds the image as a file. The unpacked packages stay in bin/ for the next run.
func debianArchive(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../../bin/workloads/debian")
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "../../hack/debs.sh", append([]string{root}, withServerPackages(t, debianPackages)...)...)
	cmd.Env = append(os.Environ(), "EXCLUDE=libllvm.*|libz3.*") // PostgreSQL's compiler of queries
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == debsUnreachable {
		t.Skipf("Debian's packages are not reachable: %s", out)
	}
	require.NoError(t, err, "%s", out)
	image, err := mutate.ConfigFile(mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1), &v1.ConfigFile{
		Architecture: runtime.GOARCH, OS: "linux", RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, Cmd: []string{"sh"}},
	})
	require.NoError(t, err)
	image, err = mutate.AppendLayers(image, static.NewLayer(debianLayer(t, root), types.OCIUncompressedLayer))
	require.NoError(t, err)
	archive := filepath.Join(t.TempDir(), "debian.tar")
	file, err := os.Create(archive)
	require.NoError(t, err)
	require.NoError(t, imagestore.WriteTar(file, imagestore.Built{Name: debianImage, Image: image}))
	require.NoError(t, file.Close())
	return archive
}

// withServerPackages replaces the package postgresql, which is empty, by the versioned ones that it depends on.
func withServerPackages(t *testing.T, packages []string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "apt-cache", "depends", "postgresql").Output()
	require.NoError(t, err)
	for field := range strings.FieldsSeq(string(out)) {
		if version, found := strings.CutPrefix(field, "postgresql-"); found && strings.Trim(version, "0123456789") == "" {
			return strings.Fields(strings.Replace(strings.Join(packages, " "), "postgresql", field+" postgresql-client-"+version, 1))
		}
	}
	t.Fatalf("Debian's postgresql names no version: %s", out)
	return nil
}

// debianLayer is the content of the packages as a tar, without what no program reads.
func debianLayer(t *testing.T, root string) []byte {
	t.Helper()
	var buffer bytes.Buffer
	archive := tar.NewWriter(&buffer)
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		name := strings.TrimPrefix(path, root+"/")
		for _, unused := range []string{"usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", ".packages"} {
			if name == unused {
				if entry.IsDir() {
					return filepath.SkipDir
				}
				return nil
			}
		}
		return addToArchive(archive, path, name, entry)
	}))
	for name, content := range map[string]string{"etc/passwd": debianUsers, "etc/group": strings.ReplaceAll(debianUsers, "::/", "")} {
		require.NoError(t, archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}))
		_, err := archive.Write([]byte(content))
		require.NoError(t, err)
	}
	require.NoError(t, archive.Close())
	return buffer.Bytes()
}

func addToArchive(archive *tar.Writer, path, name string, entry fs.DirEntry) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	var target string
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	}
	header, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	header.Name, header.ModTime, header.Uid, header.Gid = name, time.Unix(0, 0), 0, 0
	if err := archive.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
		return err
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	_, err = archive.Write(content)
	return err
}
