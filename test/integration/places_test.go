//go:build integration

package integration

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/up"
)

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
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func freePort(t testing.TB) int {
	t.Helper()
	port, err := up.FreePort()
	require.NoError(t, err)
	return port
}
