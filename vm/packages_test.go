//go:build vm

package vm

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var packagesFlag = flag.String("packages", "./kubelet/cm/... ./kubelet/eviction/... ./kubelet/stats ./kubelet/node",
	"the packages whose tests TestPackagesOnCgroup2 runs in the machine")

// TestPackagesOnCgroup2 runs the tests of packages that read and write cgroups in a machine that has cgroup v2 alone. They have their
// testdata there, but neither the rest of the repository nor Go.
func TestPackagesOnCgroup2(t *testing.T) {
	share := t.TempDir()
	args := append([]string{"-C", "..", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}"}, strings.Fields(*packagesFlag)...)
	var names []string
	for line := range strings.Lines(runHost(t, "go", args...)) {
		name, source, _ := strings.Cut(strings.TrimSpace(line), " ")
		dir := filepath.Join(share, strings.ReplaceAll(name, "/", "_"))
		require.NoError(t, os.Mkdir(dir, 0o755))
		runHost(t, "go", "-C", "..", "test", "-c", "-o", filepath.Join(dir, "test"), name)
		if err := os.CopyFS(filepath.Join(dir, "testdata"), os.DirFS(filepath.Join(source, "testdata"))); !errors.Is(err, fs.ErrNotExist) {
			require.NoError(t, err)
		}
		names = append(names, name)
	}
	require.NotEmpty(t, names)
	m := start(t, Options{Shares: []Share{{Dir: share, Path: "/tests"}}, Name: "node", MemoryMiB: 2048})
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			// In a directory like that of its source, which it may write.
			script := fmt.Sprintf("mkdir -p /run/tests/%[1]s && cd /run/tests/%[1]s && { [ ! -d /tests/%[1]s/testdata ] || cp -r /tests/%[1]s/testdata .; } && "+
				"exec /tests/%[1]s/test -test.v -test.timeout 10m", strings.ReplaceAll(name, "/", "_"))
			require.NoError(t, m.Run(t.Context(), script, IO{Stdout: t.Output(), Stderr: t.Output()}))
		})
	}
}
