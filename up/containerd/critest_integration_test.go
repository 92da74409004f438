//go:build integration

package containerd_test

import (
	"archive/tar"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/imagestore"
	"github.com/berth-dev/berth/up/containerd"
)

var (
	critest     = flag.String("critest", "", "upstream's critest, for TestCritest: test/thirdparty/critest builds it")
	critestWeb  = flag.String("critest-web", "", "names of the images with a web server that critest uses besides those of its file, separated by spaces")
	critestSkip = flag.String("critest-skip", critestNeedsImages, "the specs that TestCritest omits")
	critestRun  = flag.String("critest-focus", "", "the specs that TestCritest runs (default: all)")
)

// critestNeedsImages are the specs about images that only a registry has: pulls, and users, groups and programs of certain images. HostIpc
// runs ipcs, which Debian's busybox does not have, HostPID looks for nginx, and MaskedPaths for a shell that has no ls of its own.
const critestNeedsImages = `Image Manager|Image Consistency|Image Identifier Consistency|RunAsUser|RunAsUserName|RunAsGroup|SupplementalGroups|` +
	`NoNewPrivs|HostIpc|HostPID|MaskedPaths|host network`

// TestCritest runs upstream's tests of container runtimes on containerd, with each runtime.
func TestCritest(t *testing.T) {
	if *critest == "" {
		t.Skip("without -critest there is no program to run: make critest")
	}
	for _, runtime := range containerd.Runtimes() {
		t.Run(runtime, func(t *testing.T) {
			n := newFixture(t)
			n.start(t)
			n.importImages(t)
			store, err := imagestore.Open(t.Context(), n.Socket())
			require.NoError(t, err)
			shell := imagestore.Built{Name: "berth.local/critest-shell:v1", Image: busyboxImage(t, "sh")}
			web := imagestore.Built{Name: "berth.local/critest-web:v1", Image: busyboxImage(t, "sh", "-c", webServer)}
			images := []imagestore.Built{shell, web}
			for name := range strings.FieldsSeq(*critestWeb) {
				images = append(images, imagestore.Built{Name: name, Image: web.Image})
			}
			require.NoError(t, store.Ensure(t.Context(), images...))
			require.NoError(t, store.Close())
			names := filepath.Join(t.TempDir(), "images.yaml")
			require.NoError(t, os.WriteFile(names, fmt.Appendf(nil, "defaultTestContainerImage: %s\nwebServerTestImage: %s\n", shell.Name, web.Name), 0o600))
			endpoint := "unix://" + n.Socket()
			command := exec.CommandContext(t.Context(), *critest, "-runtime-endpoint", endpoint, "-image-endpoint", endpoint, "-runtime-handler", runtime,
				"-test-images-file", names, "-ginkgo.no-color", "-ginkgo.skip", *critestSkip, "-ginkgo.focus", *critestRun)
			command.Stdout, command.Stderr = t.Output(), t.Output()
			require.NoError(t, command.Run())
			n.requireNothingLeft(t)
			n.stop(t)
			n.clean(t)
		})
	}
}

// pgrep lists the processes with a name; Debian's busybox has no such command.
const pgrep = `#!/bin/sh
found=1
for process in /proc/[0-9]*; do
	[ "$(cat $process/comm 2>/dev/null)" = "$1" ] && echo ${process#/proc/} && found=0
done
exit $found
`

// webServer has the marks of nginx by which specs find its process.
const webServer = `echo httpd starts; echo $$ > /var/run/nginx.pid; exec httpd -f -p 80 -h /www -r "master process"`

// busyboxImage is an image of the machine's busybox with all its commands, which runs one of them.
func busyboxImage(t testing.TB, entrypoint ...string) v1.Image {
	t.Helper()
	const program = "/bin/busybox"
	binary, err := os.ReadFile(program)
	require.NoError(t, err, "apt-get install busybox-static (make deps does)")
	commands, err := exec.CommandContext(t.Context(), program, "--list").Output()
	require.NoError(t, err)
	var layer bytes.Buffer
	archive := tar.NewWriter(&layer)
	add := func(header tar.Header, data []byte) {
		header.Size = int64(len(data))
		require.NoError(t, archive.WriteHeader(&header))
		_, err := archive.Write(data)
		require.NoError(t, err)
	}
	for _, dir := range []string{"bin", "etc", "root", "home", "proc", "sys", "dev", "var", "var/run", "www", "mnt"} {
		add(tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}, nil)
	}
	add(tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}, nil)
	add(tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755}, binary)
	add(tar.Header{Typeflag: tar.TypeReg, Name: "bin/pgrep", Mode: 0o755}, []byte(pgrep))
	add(tar.Header{Typeflag: tar.TypeReg, Name: "www/index.html", Mode: 0o644}, []byte("hello\n"))
	add(tar.Header{Typeflag: tar.TypeReg, Name: "etc/passwd", Mode: 0o644}, []byte("root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33:www-data:/:/bin/false\n"))
	add(tar.Header{Typeflag: tar.TypeReg, Name: "etc/group", Mode: 0o644}, []byte("root:x:0:\nwww-data:x:33:\n"))
	for command := range strings.FieldsSeq(string(commands)) {
		if command != "busybox" && command != "pgrep" {
			add(tar.Header{Typeflag: tar.TypeLink, Name: "bin/" + command, Linkname: "bin/busybox", Mode: 0o755}, nil)
		}
	}
	require.NoError(t, archive.Close())
	content, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil })
	require.NoError(t, err)
	image, err := mutate.AppendLayers(empty.Image, content)
	require.NoError(t, err)
	config, err := image.ConfigFile()
	require.NoError(t, err)
	config = config.DeepCopy()
	config.Architecture, config.OS = goruntime.GOARCH, "linux"
	config.Config.Entrypoint = append([]string{"/bin/busybox"}, entrypoint...)
	config.Config.Env = []string{"PATH=/bin"}
	image, err = mutate.ConfigFile(image, config)
	require.NoError(t, err)
	return image
}
