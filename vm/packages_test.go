//go:build vm

package vm

import (
	"flag"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var packagesFlag = flag.String("packages", "./kubelet/cm/... ./kubelet/eviction/... ./kubelet/stats ./kubelet/node",
	"the packages whose tests TestPackagesOnCgroup2 runs in the machine")

// TestPackagesOnCgroup2 runs the tests of packages that read and write cgroups in a machine that has cgroup v2 alone.
func TestPackagesOnCgroup2(t *testing.T) {
	share := t.TempDir()
	args := append([]string{"-C", "..", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}"}, strings.Fields(*packagesFlag)...)
	names := strings.Fields(runHost(t, "go", args...))
	require.NotEmpty(t, names)
	for _, name := range names {
		runHost(t, "go", "-C", "..", "test", "-c", "-o", filepath.Join(share, strings.ReplaceAll(name, "/", "_")), name)
	}
	m := start(t, Options{Shares: []Share{{Dir: share, Path: "/tests"}}, Name: "node", MemoryMiB: 2048})
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			script := "mkdir -p /run/tests && cd /run/tests && exec /tests/" + strings.ReplaceAll(name, "/", "_") + " -test.v -test.timeout 10m"
			require.NoError(t, m.Run(t.Context(), script, IO{Stdout: t.Output(), Stderr: t.Output()}))
		})
	}
}
