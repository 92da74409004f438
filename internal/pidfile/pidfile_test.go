package pidfile

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOnlyTheRecordedProcessIsRunning(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.pid")
	require.Zero(t, Running(Proc, path), "no file")
	process := exec.Command("/bin/sleep", "1000")
	require.NoError(t, process.Start())
	require.NoError(t, Write(path, process.Process.Pid))
	require.Equal(t, process.Process.Pid, Running(Proc, path))

	require.NoError(t, process.Process.Kill())
	require.Error(t, process.Wait())
	require.Zero(t, Running(Proc, path), "it has ended")
	require.NoError(t, Write(path+"2", process.Process.Pid))
	require.NoFileExists(t, path+"2", "an ended process is not recorded")
	for _, content := range []string{"", "x 1", "-1 1", strconv.Itoa(os.Getpid()), strconv.Itoa(os.Getpid()) + " 1"} {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		require.Zero(t, Running(Proc, path), "%q", content)
	}
}

// TestProcessesOfAnotherNamespace reads processes from a directory as that of an isolated cluster.
func TestProcessesOfAnotherNamespace(t *testing.T) {
	proc, path := t.TempDir(), filepath.Join(t.TempDir(), "x.pid")
	require.NoError(t, os.WriteFile(path, []byte("7 4321\n"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(proc, "7"), 0o755))
	write := func(state, threads, start string) {
		line := "7 (a) b) " + state + " 1 7 7 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 " + threads + " 0 " + start + " 0 0\n"
		require.NoError(t, os.WriteFile(filepath.Join(proc, "7/stat"), []byte(line), 0o600))
	}
	write("S", "1", "4321")
	require.Equal(t, 7, Running(proc, path))
	write("Z", "2", "4321")
	require.Equal(t, 7, Running(proc, path), "a thread of it still ends")
	write("Z", "1", "4321")
	require.Zero(t, Running(proc, path))
	write("S", "1", "4322")
	require.Zero(t, Running(proc, path))
	require.NoError(t, os.WriteFile(filepath.Join(proc, "7/stat"), []byte("7 (a) S 1"), 0o600))
	require.Zero(t, Running(proc, path))
}
