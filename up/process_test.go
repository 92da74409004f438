package up

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/pidfile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func shell(t *testing.T, script string) program {
	t.Helper()
	dir := t.TempDir()
	return program{name: "thing", argv: []string{"/bin/sh", "-c", script}, logFile: filepath.Join(dir, "log"), pidFile: filepath.Join(dir, "thing.pid")}
}

func TestProgramSaysWhyItExited(t *testing.T) {
	p := shell(t, "echo all is well; echo the disk is full >&2; exit 3")
	err := p.run(t.Context())
	require.ErrorContains(t, err, "thing exited unexpectedly (exit status 3): the disk is full")
	require.ErrorContains(t, err, p.logFile)
	require.NoFileExists(t, p.pidFile)

	require.ErrorContains(t, shell(t, "exit 0").run(t.Context()), "exited unexpectedly")
	missing := program{name: "thing", argv: []string{"/no/such"}, logFile: p.logFile, pidFile: p.pidFile}
	require.ErrorContains(t, missing.run(t.Context()), "start thing")
}

func TestProgramGetsLinesAndStopsWhenAsked(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := shell(t, "")
	p.argv[2] = "sleep 1000 & trap \"kill $!; echo bye; exit 0\" TERM; echo half; echo ready; wait"
	var lines []string
	p.onLine = func(line []byte) {
		lines = append(lines, string(line))
		if string(line) == "ready" {
			cancel()
		}
	}
	require.NoError(t, p.run(ctx), "an end that was asked for is no error")
	require.Equal(t, []string{"half", "ready", "bye"}, lines)
}

func TestStaleProcessesAreEndedButStrangersAreNot(t *testing.T) {
	dir := t.TempDir()
	stale := exec.Command("/bin/sleep", "1000")
	require.NoError(t, stale.Start())
	stranger := exec.Command("/bin/sleep", "1000")
	require.NoError(t, stranger.Start())
	t.Cleanup(func() {
		require.NoError(t, stranger.Process.Kill())
		_ = stranger.Wait() // killed, as meant
	})
	require.NoError(t, pidfile.Write(filepath.Join(dir, "old.pid"), stale.Process.Pid))
	// The same pid with another start time is another process.
	reused := strings.Join([]string{strconv.Itoa(stranger.Process.Pid), "1"}, " ")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "reused.pid"), []byte(reused), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "broken.pid"), []byte("x"), 0o600))

	runtime := exec.Command("/bin/sleep", "1000")
	require.NoError(t, runtime.Start())
	require.NoError(t, pidfile.Write(filepath.Join(dir, "containerd.pid"), runtime.Process.Pid))

	waited, killed := make(chan error, 1), make(chan error, 1)
	go func() { waited <- stale.Wait() }()
	go func() { killed <- runtime.Wait() }()
	ended, err := stopStale(t.Context(), dir)
	require.NoError(t, err)
	require.Equal(t, []string{"containerd", "old"}, ended)
	require.ErrorContains(t, <-waited, "terminated")
	require.ErrorContains(t, <-killed, "killed", "containerd is not asked")
	require.NoError(t, stranger.Process.Signal(syscall.Signal(0)), "the stranger lives")
	files, err := filepath.Glob(filepath.Join(dir, "*.pid"))
	require.NoError(t, err)
	require.Empty(t, files)
}

func TestSuperviseRestartsWithBackoff(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan int)
	notes := make(chan string, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		count := 0
		supervise(ctx, clock, "thing", func(report string) { notes <- report }, func(context.Context) error {
			count++
			started <- count
			if count == 2 {
				panic("bad luck")
			}
			return errors.New("no disk")
		})
	}()
	require.Equal(t, 1, <-started)
	require.Equal(t, "thing exited: no disk; restarting it in 250ms", <-notes)
	waitForTimer(t, clock)
	clock.Step(250 * time.Millisecond)
	require.Equal(t, 2, <-started)
	require.Equal(t, "thing exited: up.component of thing panicked: bad luck; restarting it in 500ms", <-notes)
	waitForTimer(t, clock)
	cancel()
	<-done
	require.Empty(t, notes, "a stop that was asked for is not reported")
}

func waitForTimer(t *testing.T, clock *clocktesting.FakeClock) {
	t.Helper()
	require.Eventually(t, clock.HasWaiters, time.Minute, time.Millisecond)
}

func TestProgressInAPipeIsPlain(t *testing.T) {
	var out strings.Builder
	p := NewProgress(&out, nil, clock.RealClock{})
	p.Starting("etcd")
	p.Ready("etcd", "3.6")
	p.Failed("containerd", errors.New("no runc"))
	p.Printf("done")
	require.NotContains(t, out.String(), "\x1b")
	require.Regexp(t, `(?m)^etcd +starting\netcd +ready +\d+\.\d\d s  3\.6\ncontainerd +failed +\d+\.\d\d s  no runc\ndone\n$`, out.String())
}

func TestProgressOnATerminalRedrawsItsBlock(t *testing.T) {
	var out strings.Builder
	p := NewProgress(&out, func() int { return 80 }, clock.RealClock{})
	p.Starting("etcd")
	p.Starting("kubelet")
	p.Ready("etcd", "")
	require.Equal(t, 1, strings.Count(out.String(), "\x1b[1A\x1b[J"), "each change goes up over the block")
	require.Equal(t, 1, strings.Count(out.String(), "\x1b[2A\x1b[J"))
	p.Printf("below")
	p.Ready("kubelet", "")
	require.NotContains(t, out.String()[strings.Index(out.String(), "below"):], "\x1b[2A", "what was said is not drawn over")
}

func TestProgressGoesUpOverWrappedLines(t *testing.T) {
	var out strings.Builder
	p := NewProgress(&out, func() int { return 40 }, clock.RealClock{})
	p.Starting("etcd")
	p.Ready("etcd", "")   // 46 columns, which take two rows
	p.Starting("kubelet") // goes up over these
	require.Contains(t, out.String(), "\x1b[2A\x1b[J")
}

func TestAStopThatWasAskedForIsNoFailure(t *testing.T) {
	for _, reason := range []error{context.Canceled, status.Error(codes.Canceled, "context canceled")} {
		ctx, cancel := context.WithCancel(t.Context())
		supervise(ctx, clock.RealClock{}, "thing", func(report string) { t.Error(report) }, func(context.Context) error {
			cancel()
			return fmt.Errorf("set up: %w", reason)
		})
	}
}

func TestAComponentThatIsStoppedHasNotFailed(t *testing.T) {
	var out strings.Builder
	c, err := New(Deps{Progress: NewProgress(&out, nil, clock.RealClock{})}, RunConfig{Layout: Layout{Config: Config{DataDir: "/d"}}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	failed := []byte(`{"component":"kube-apiserver","state":"failed","error":"code 255"}`)
	c.onControlplaneLine(ctx, failed, newReadiness())
	require.Contains(t, out.String(), "code 255")
	out.Reset()
	cancel()
	c.onControlplaneLine(ctx, failed, newReadiness())
	require.Empty(t, out.String())
}

func TestTheFirstFailureEndsTheWait(t *testing.T) {
	for name, failing := range map[string]func(infrastructure) *readiness{
		"runtime":       func(g infrastructure) *readiness { return g.runtime },
		"control plane": func(g infrastructure) *readiness { return g.controlplane },
	} {
		t.Run(name, func(t *testing.T) {
			g := infrastructure{controlplane: newReadiness(), runtime: newReadiness()}
			full := errors.New("disk full")
			for range maxExitsBeforeReady {
				failing(g).recordExit(full)
			}
			require.ErrorIs(t, g.wait(t.Context()), full, "whatever the other does")
		})
	}
	g := infrastructure{controlplane: newReadiness(), runtime: newReadiness()}
	g.runtime.set(nil)
	g.controlplane.set(nil)
	require.NoError(t, g.wait(t.Context()))
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
