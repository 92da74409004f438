package supervisor

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/utils/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shell returns a program that runs a script.
func shell(t *testing.T, script string) Program {
	t.Helper()
	dir := t.TempDir()
	return Program{
		Name: "thing", Argv: []string{"/bin/sh", "-c", script}, Env: os.Environ(),
		Log: filepath.Join(dir, "log"), PIDFile: filepath.Join(dir, "thing.pid"),
	}
}

func TestProgramSaysWhyItExited(t *testing.T) {
	p := shell(t, "echo all is well; echo the disk is full >&2; exit 3")
	err := p.Run(t.Context())
	require.ErrorContains(t, err, "thing exited unexpectedly (exit status 3): the disk is full")
	require.ErrorContains(t, err, p.Log)
	require.NoFileExists(t, p.PIDFile)

	require.ErrorContains(t, shell(t, "exit 0").Run(t.Context()), "exited unexpectedly")
	missing := Program{Name: "thing", Argv: []string{"/no/such"}, Log: p.Log, PIDFile: p.PIDFile}
	require.ErrorContains(t, missing.Run(t.Context()), "start thing")
}

func TestProgramGetsLinesAndStopsWhenAsked(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := shell(t, "")
	p.Argv[2] = "sleep 1000 & trap \"kill $!; echo bye; exit 0\" TERM; echo half; echo ready; wait"
	var lines []string
	with := running{clock: clock.RealClock{}, onLine: func(line string) {
		lines = append(lines, line)
		if line == "ready" {
			cancel()
		}
	}}
	require.NoError(t, p.run(ctx, with), "an end that was asked for is no error")
	require.Equal(t, []string{"half", "ready", "bye"}, lines)
}

func TestACrashIsReportedByItsCause(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	crash := "starting\npanic: no space left\n\ngoroutine 1 [running]:\nmain.main()\n\t/a/main.go:7 +0x18\nexit status 2\n"
	for text, want := range map[string]string{
		"one\ntwo\n": "two", strings.TrimSuffix(crash, "exit status 2\n"): "panic: no space left", crash + "later\n": "later",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		require.Equal(t, want+" (see "+path+")", lastLine(path))
	}
}
