//go:build integration

package integration

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/testnet"
	"github.com/berth-dev/berth/volume/mounts"
)

const printerManifest = `
apiVersion: v1
kind: Pod
metadata: {name: talker}
spec:
  terminationGracePeriodSeconds: 2
  containers: [{name: c, image: berth.local/demo:v1}]
`

// foreground is a `berth run` of the demo, on a containerd of its own.
type foreground struct {
	t     testing.TB
	root  string
	cmd   *exec.Cmd
	out   *os.File
	lines *bufio.Scanner
}

// startForeground starts it and returns when the demo serves.
func startForeground(t testing.TB, root string) *foreground {
	t.Helper()
	manifest := filepath.Join(root, "pod.yaml")
	require.NoError(t, os.WriteFile(manifest, []byte(printerManifest), 0o600))
	f := &foreground{t: t, root: root, cmd: exec.Command(berthBinary(t), "run", "-f", manifest,
		"--root-dir", root, "--pod-cidr", testnet.Prefix(testnet.Claim(t)).String())}
	read, write, err := os.Pipe()
	require.NoError(t, err)
	f.cmd.Stdout, f.cmd.Stderr = write, write
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // it cleans up when the tests are ended
	defer catchHangups()()
	require.NoError(t, f.cmd.Start())
	require.NoError(t, write.Close())
	f.out, f.lines = read, bufio.NewScanner(read)
	for f.lines.Scan() && !strings.Contains(f.lines.Text(), "listening on") {
		t.Log(f.lines.Text())
	}
	require.Contains(t, f.lines.Text(), "listening on")
	return f
}

// stopped checks that it has the exit code of the signal, and has removed everything except its images.
func (f *foreground) stopped(by syscall.Signal) {
	f.t.Helper()
	defer time.AfterFunc(waitTimeout, func() { _ = f.cmd.Process.Kill() }).Stop()
	var exit *exec.ExitError
	require.ErrorAs(f.t, f.cmd.Wait(), &exit)
	require.Equal(f.t, 128+int(by), exit.ExitCode(), "it was interrupted: %v", exit)
	left, err := mounts.ListBelow(f.root)
	require.NoError(f.t, err)
	require.Empty(f.t, left)
	require.Empty(f.t, glob(filepath.Join(f.root, "pods", "*")))
	require.Empty(f.t, f.containers())
}

// containers returns the processes of the demo that have files of this run mounted.
func (f *foreground) containers() []int {
	f.t.Helper()
	var found []int
	for _, dir := range glob("/proc/[0-9]*") {
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // it may end meanwhile
		table, _ := os.ReadFile(filepath.Join(dir, "mountinfo"))
		if strings.HasPrefix(string(command), "/demo\x00") && strings.Contains(string(table), f.root) {
			pid, err := strconv.Atoi(filepath.Base(dir))
			require.NoError(f.t, err)
			found = append(found, pid)
		}
	}
	return found
}

// newForeground runs the manifest again after a failed test, which removes what that has left.
func newForeground(t *testing.T) *foreground {
	root := t.TempDir()
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		again := startForeground(t, root)
		require.NoError(t, again.cmd.Process.Signal(syscall.SIGTERM))
		_, _ = io.Copy(io.Discard, again.out)
		_ = again.cmd.Wait()
	})
	return startForeground(t, root)
}

// TestRunStopsWithItsTerminal sends the two SIGHUPs of one closed terminal.
func TestRunStopsWithItsTerminal(t *testing.T) {
	f := newForeground(t)
	require.NoError(t, f.cmd.Process.Signal(syscall.SIGHUP))
	for f.lines.Scan() && !strings.Contains(f.lines.Text(), "stopping pod") {
		continue
	}
	require.NoError(t, f.cmd.Process.Signal(syscall.SIGHUP))
	_, err := io.Copy(io.Discard, f.out)
	require.NoError(t, err)
	f.stopped(syscall.SIGHUP)
}

// TestRunStopsWithItsReader is `berth run | head`: the next line has no reader.
func TestRunStopsWithItsReader(t *testing.T) {
	f := newForeground(t)
	require.NoError(t, f.out.Close())
	containers := f.containers()
	require.Len(t, containers, 1)
	require.NoError(t, syscall.Kill(containers[0], syscall.SIGKILL)) // it is started again, and prints its message again
	f.stopped(syscall.SIGPIPE)
}
