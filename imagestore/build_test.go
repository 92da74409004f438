package imagestore_test

import (
	"archive/tar"
	"bytes"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/imagestore"
)

func TestBuildIsDeterministic(t *testing.T) {
	digest := func(binary, version string) string {
		built, err := imagestore.Build(imagestore.PauseSpec([]byte(binary), version))
		require.NoError(t, err)
		require.Equal(t, "berth.local/pause:"+version, built.Name)
		digest, err := built.Image.Digest()
		require.NoError(t, err)
		return digest.String()
	}
	require.Equal(t, digest("program", "v1"), digest("program", "v1"))
	require.NotEqual(t, digest("program", "v1"), digest("another", "v1"))
	require.NotEqual(t, digest("program", "v1"), digest("program", "v2"))
}

func TestBuildHoldsTheProgram(t *testing.T) {
	spec := imagestore.DemoSpec([]byte("program"), "v1")
	spec.Path = "/usr/bin/demo"
	built, err := imagestore.Build(spec)
	require.NoError(t, err)
	config, err := built.Image.ConfigFile()
	require.NoError(t, err)
	require.Equal(t, "linux", config.OS)
	require.Equal(t, runtime.GOARCH, config.Architecture)
	require.Equal(t, []string{"/usr/bin/demo"}, config.Config.Entrypoint)
	require.Equal(t, "65532:65532", config.Config.User)
	require.Contains(t, config.Config.ExposedPorts, "8080/tcp")
	require.Equal(t, "v1", config.Config.Labels["org.opencontainers.image.version"])

	layers, err := built.Image.Layers()
	require.NoError(t, err)
	require.Len(t, layers, 1)
	data, err := layers[0].Uncompressed()
	require.NoError(t, err)
	defer data.Close()
	var names []string
	for archive := tar.NewReader(data); ; {
		header, err := archive.Next()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		names = append(names, header.Name)
		isMountPoint := strings.HasPrefix(header.Name, "etc/") && header.Typeflag == tar.TypeReg
		if isMountPoint {
			require.EqualValues(t, 0o644, header.Mode)
			require.Zero(t, header.Size)
			continue
		}
		require.EqualValues(t, 0o755, header.Mode)
		if header.Typeflag == tar.TypeReg {
			content, err := io.ReadAll(archive)
			require.NoError(t, err)
			require.Equal(t, "program", string(content))
		}
	}
	// With the places onto which a runtime mounts, so that no container has to get them while it starts.
	require.Equal(t, []string{"dev/", "etc/", "etc/hostname", "etc/hosts", "etc/resolv.conf", "proc/", "sys/",
		"usr/", "usr/bin/", "usr/bin/demo"}, names)
}

func TestBuildNamesTheFieldThatIsWrong(t *testing.T) {
	good := imagestore.BuildSpec{Name: "berth.local/x:v1", Binary: []byte("x"), Path: "/x"}
	for name, tt := range map[string]struct {
		change func(*imagestore.BuildSpec)
		err    string
	}{
		"no program":    {func(s *imagestore.BuildSpec) { s.Binary = nil }, "field Binary is empty"},
		"relative path": {func(s *imagestore.BuildSpec) { s.Path = "x" }, `field Path "x"`},
		"path leads up": {func(s *imagestore.BuildSpec) { s.Path = "/../x" }, `field Path "/../x"`},
		"path is root":  {func(s *imagestore.BuildSpec) { s.Path = "/" }, `field Path "/"`},
		"environment":   {func(s *imagestore.BuildSpec) { s.Env = []string{"=1"} }, `field Env: "=1"`},
		"name":          {func(s *imagestore.BuildSpec) { s.Name = "Berth.local/X:" }, `image name "Berth.local/X:"`},
	} {
		t.Run(name, func(t *testing.T) {
			spec := good
			tt.change(&spec)
			_, err := imagestore.Build(spec)
			require.ErrorContains(t, err, tt.err)
		})
	}
	_, err := imagestore.Build(good)
	require.NoError(t, err)
}

// BenchmarkBuild is what every start of a cluster pays, with a program as large as the demo's.
func BenchmarkBuild(b *testing.B) {
	binary := bytes.Repeat([]byte("0123456789abcdef"), 6<<20/16)
	for b.Loop() {
		built, err := imagestore.Build(imagestore.DemoSpec(binary, "v1"))
		require.NoError(b, err)
		_, err = built.Image.Digest()
		require.NoError(b, err)
	}
}
