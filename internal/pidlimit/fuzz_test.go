package pidlimit_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/pidlimit"
)

// FuzzRead reads arbitrary files of the kernel: no number is negative, and the limit is one of those in the files.
func FuzzRead(f *testing.F) {
	f.Add("32768\n", "1000\n", "0.1 0.2 0.3 2/345 9999\n")
	f.Add("-1", "", "1 2 3 1/-5")
	f.Add("9223372036854775808", "x", "1 2 3 /")
	f.Fuzz(func(t *testing.T, pids, threads, load string) {
		proc := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(proc, "sys/kernel"), 0o700))
		for name, content := range map[string]string{"sys/kernel/pid_max": pids, "sys/kernel/threads-max": threads, "loadavg": load} {
			require.NoError(t, os.WriteFile(filepath.Join(proc, name), []byte(content), 0o600))
		}
		limit, existing := pidlimit.Read(proc)
		require.GreaterOrEqual(t, limit, int64(0))
		require.GreaterOrEqual(t, existing, int64(0))
	})
}
