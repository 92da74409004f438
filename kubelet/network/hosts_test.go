package network

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/statefile/corrupt"
)

// TestHostsFileThatAContainerHasChanged writes the hosts file of a Pod over whatever its containers or a damaged disk have made of it. A
// container may make it as large as it likes, for instance by a hole of 1 TiB: nothing of that is read.
func TestHostsFileThatAContainerHasChanged(t *testing.T) {
	want := []byte("127.0.0.1\tlocalhost\n")
	corrupt.Each(t, func(t *testing.T) string {
		path := filepath.Join(t.TempDir(), "pod", "etc-hosts")
		require.NoError(t, WriteHosts(slog.New(slog.DiscardHandler), path, want))
		return path
	}, func(t *testing.T, way, path string) {
		before, err := os.Stat(path)
		var begin, end runtime.MemStats
		runtime.ReadMemStats(&begin)
		var log bytes.Buffer
		require.NoError(t, WriteHosts(slog.New(slog.NewTextHandler(&log, nil)), path, want))
		runtime.ReadMemStats(&end)
		require.Less(t, end.TotalAlloc-begin.TotalAlloc, uint64(1<<20))
		kept, globErr := filepath.Glob(path + ".damaged*")
		require.NoError(t, globErr)
		require.Equal(t, len(kept), strings.Count(log.String(), "set aside a damaged state file"), log.String())
		got, readErr := os.ReadFile(path)
		require.NoError(t, readErr)
		require.Equal(t, want, got)
		after, statErr := os.Lstat(path)
		require.NoError(t, statErr)
		require.Equal(t, os.FileMode(0o644), after.Mode())
		if err == nil && before.Mode().IsRegular() && way != "link to another file" {
			require.True(t, os.SameFile(before, after), "running containers have the file mounted")
		}
	})
}
