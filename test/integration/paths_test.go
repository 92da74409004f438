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

// guardNode registers for removal what a node leaves when the tests are killed: its directories, those of the test, its
// cgroup, and its Pods' network.
func guardNode(t testing.TB, cgroup, bridge string, dirs ...string) {
	t.Helper()
	testproc.CleanupOnCrash(t, testproc.Resources{
		Dirs: append(dirs, filepath.Dir(t.TempDir())), Cgroups: []string{cgroup}, Links: []string{bridge},
		Files: []string{"/var/lib/cni/results/" + bridge + "-*"},
	})
}

// runDir returns a directory below /run for the test, where the paths of sockets are short.
func runDir(t testing.TB, prefix string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/run", prefix)
	require.NoError(t, err)
	testproc.CleanupOnCrash(t, testproc.Resources{Dirs: []string{dir}})
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// longestTemp is the longest usable path of the directory for temporary files: there are sockets below it, whose paths are
// limited.
const longestTemp = 30

// shortDir returns a directory with a short path; that of t.TempDir contains the name of the test.
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
