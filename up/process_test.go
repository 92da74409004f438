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
	"github.com/berth-dev/berth/up/progress"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "directory.pid", "child"), 0o700))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "fifo.pid"), 0o600))

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
	c, err := New(Deps{Progress: progress.New(&out, nil, clock.RealClock{})}, RunConfig{Layout: Layout{Config: Config{DataDir: "/d"}}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	failed := `{"component":"kube-apiserver","state":"failed","error":"code 255"}`
	c.onControlplaneLine(ctx, failed, false, newInfrastructure())
	require.Contains(t, out.String(), "code 255")
	out.Reset()
	cancel()
	c.onControlplaneLine(ctx, failed, false, newInfrastructure())
	require.Empty(t, out.String())
}

func TestTheFirstFailureEndsTheWait(t *testing.T) {
	for name, failing := range map[string]func(infrastructure) *readiness{
		"runtime": func(g infrastructure) *readiness { return g.runtime },
		"API":     func(g infrastructure) *readiness { return g.api },
	} {
		t.Run(name, func(t *testing.T) {
			g := newInfrastructure()
			full := errors.New("disk full")
			for range maxExitsBeforeReady {
				failing(g).recordExit(full)
			}
			require.ErrorIs(t, g.wait(t.Context()), full, "whatever the other does")
		})
	}
	g := newInfrastructure()
	g.runtime.set(nil)
	g.api.set(nil)
	require.NoError(t, g.wait(t.Context()))
}
