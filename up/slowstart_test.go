package up

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/up/supervisor"
)

// printed is a Display that keeps what is printed.
type printed struct {
	supervisor.Display
	lines chan string
}

func (p printed) Printf(_ string, args ...any) { p.lines <- args[len(args)-1].(string) }

// TestSlowStartSaysWhatItWaitsFor: which part, for how long, and the last error of this start in its log.
func TestSlowStartSaysWhatItWaitsFor(t *testing.T) {
	dir := t.TempDir()
	log := func(name, content string) string {
		path := filepath.Join(dir, name+".log")
		file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		require.NoError(t, err)
		_, err = file.WriteString(content)
		require.NoError(t, err)
		require.NoError(t, file.Close())
		return path
	}
	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	lines := make(chan string, 10)
	c := &Cluster{clock: clock, progress: printed{lines: lines}, logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	api, runtime := newReadiness(), newReadiness()
	path := log("api", "time=1 level=ERROR msg=\"of an earlier start\"\n")
	end := c.reportSlowStart(t.Context(), startingPart{name: "the API server", ready: api, log: path},
		startingPart{name: "containerd", ready: runtime, log: log("containerd", "")})

	waitForTimer(t, clock)
	clock.Step(slowStart)
	require.Equal(t, "the API server is not ready after 20s (see "+path+")", <-lines)
	require.Contains(t, <-lines, "containerd is not ready after 20s")

	waitForTimer(t, clock)
	runtime.set(nil)
	log("api", "time=2 level=ERROR msg=first\ntime=2 level=ERROR msg=\"cannot list Secrets\" err=damaged\ntime=3 level=INFO msg=fine\n")
	clock.Step(2 * slowStart)
	require.Equal(t, "the API server is not ready after 1m0s; the last error in "+path+`: "cannot list Secrets" err=damaged`, <-lines)
	end()
	require.Empty(t, lines, "what is ready is not reported, and nothing after the end")
}

func TestLastErrorKnowsTheFormatsOfLogs(t *testing.T) {
	for line, want := range map[string]string{
		`time="2026-11-30T21:00:00Z" level=fatal msg="no shim"`:                      `"no shim"`,
		`time="2026-11-30T21:00:00Z" level=warning msg="no shim"`:                    "",
		`{"level":"error","ts":"1","msg":"failed","error":"full"}`:                   `"ts":"1","msg":"failed","error":"full"}`,
		"time=1 level=ERROR msg=\"half of a character: \xe4\"":                       "",
		"time=1 level=ERROR msg=a\ntime=1 level=ERROR msg=b\ngoroutine 1 [running]:": "b",
	} {
		require.Equal(t, want, lastError([]byte(line)), line)
	}
}
