package pidlimit

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheSmallerLimitCounts(t *testing.T) {
	proc := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(proc, "sys/kernel"), 0o700))
	read := func(name, content string) [2]int64 {
		require.NoError(t, os.WriteFile(filepath.Join(proc, name), []byte(content), 0o600))
		limit, existing := Read(proc)
		return [2]int64{limit, existing}
	}
	require.Equal(t, [2]int64{0, 345}, read("loadavg", "0.1 0.2 0.3 2/345 999\n"))
	require.Equal(t, [2]int64{47376, 345}, read("sys/kernel/threads-max", "47376\n"))
	require.Equal(t, [2]int64{47376, 345}, read("sys/kernel/pid_max", "4194304\n"))
	require.Equal(t, [2]int64{32768, 345}, read("sys/kernel/pid_max", "32768\n"))
	require.Equal(t, [2]int64{47376, 345}, read("sys/kernel/pid_max", "many"))
	require.Equal(t, [2]int64{47376, 0}, read("loadavg", "0.1 0.2\n"))
}
