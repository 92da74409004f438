//go:build integration

package integration

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/testproc"
	"github.com/berth-dev/berth/up"
)

// guardNode has what a node leaves taken away when the tests are ended from outside: its directories, those of the test,
// its control group, and its Pods' network.
func guardNode(t testing.TB, cgroup, bridge string, dirs ...string) {
	t.Helper()
	testproc.CleanupOnCrash(t, testproc.Resources{
		Dirs: append(dirs, filepath.Dir(t.TempDir())), Cgroups: []string{cgroup}, Links: []string{bridge},
		Files: []string{"/var/lib/cni/results/" + bridge + "-*"},
	})
}

// runDir is a directory below /run for the test: names of sockets are short there.
func runDir(t testing.TB, prefix string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/run", prefix)
	require.NoError(t, err)
	testproc.CleanupOnCrash(t, testproc.Resources{Dirs: []string{dir}})
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// longestTemp is how long the name of the directory for temporary files may be: there are sockets in what lies below, and
// the name of one is bounded.
const longestTemp = 30

// shortDir is a directory for the test with a short name, which t.TempDir makes from that of the test.
func shortDir(t testing.TB) string {
	t.Helper()
	parent := os.TempDir()
	if len(parent) > longestTemp {
		parent = "/tmp"
	}
	dir, err := os.MkdirTemp(parent, "berth")
	require.NoError(t, err)
	testproc.CleanupOnCrash(t, testproc.Resources{Dirs: []string{dir}})
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func freePort(t testing.TB) int {
	t.Helper()
	port, err := up.FreePort()
	require.NoError(t, err)
	return port
}
