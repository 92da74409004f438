package pause

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// timeout bounds every wait of these tests.
const timeout = time.Minute

// program builds the program as build.sh does, without its optimizations.
func program(t *testing.T) string {
	t.Helper()
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("needs a C compiler: %v", err)
	}
	path := filepath.Join(t.TempDir(), "pause")
	out, err := exec.Command(compiler, "-D_POSIX_C_SOURCE=200809L", `-DVERSION="test"`, "-o", path, "program/pause.c").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

func TestArguments(t *testing.T) {
	path := program(t)
	for _, tt := range []struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		{args: []string{"-v"}, stdout: "pause test\n"},
		{args: []string{"--version"}, stdout: "pause test\n"},
		{args: []string{"sleep"}, code: 2, stderr: "pause: unknown argument \"sleep\": it takes none but -v\n"},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			var stdout, stderr strings.Builder
			cmd := exec.Command(path, tt.args...)
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			var exit *exec.ExitError
			if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if cmd.ProcessState.ExitCode() != tt.code || stdout.String() != tt.stdout || stderr.String() != tt.stderr {
				t.Errorf("%d %q %q, want %d %q %q", cmd.ProcessState.ExitCode(), stdout.String(), stderr.String(), tt.code, tt.stdout, tt.stderr)
			}
		})
	}
}

// TestEndsWhenAskedAfterReaping gives the program two children that end while it runs, and ends it then.
func TestEndsWhenAskedAfterReaping(t *testing.T) {
	path := program(t)
	for _, end := range []unix.Signal{unix.SIGTERM, unix.SIGINT} {
		t.Run(end.String(), func(t *testing.T) {
			cmd := exec.Command("sh", "-c", `sleep 0.3 & sleep 0.4 & exec "$0"`, path)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			defer func() { _ = cmd.Process.Kill() }()
			file := fmt.Sprintf("/proc/%d/", cmd.Process.Pid)
			eventually(t, "the program runs", func() bool { return read(file+"comm") == "pause\n" })
			eventually(t, "the children are collected", func() bool { return read(file+fmt.Sprintf("task/%d/children", cmd.Process.Pid)) == "" })
			if err := cmd.Process.Signal(end); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(timeout):
				t.Error("it does not end")
			}
		})
	}
}

func read(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// eventually waits until f returns true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}
