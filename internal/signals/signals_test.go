package signals_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/signals"
)

// signalledVariable makes TestSignalled the program that the other tests send signals to.
const signalledVariable = "BERTH_TEST_SIGNALLED"

// TestSignalled stops as a program does, which takes as long as its standard input is open.
func TestSignalled(t *testing.T) {
	if os.Getenv(signalledVariable) == "" {
		t.Skip("the other tests run it")
	}
	ctx := signals.Context()
	if os.Getenv(signalledVariable) == "patient" {
		signals.IgnoreSecondSignal()
	}
	fmt.Println("running")
	<-ctx.Done()
	fmt.Println(context.Cause(ctx))
	_, _ = io.Copy(io.Discard, os.Stdin) // its end is all that counts
	fmt.Println("stopped in order")
}

// signalled is that program in a process of its own.
type signalled struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   io.Closer
	lines *bufio.Scanner
}

// startSignalled starts it from a shell that does first what is to be done.
func startSignalled(t *testing.T, first string) *signalled {
	t.Helper()
	s := &signalled{t: t, cmd: exec.CommandContext(t.Context(), "/bin/sh", "-c", first+`exec "$0" -test.run='^TestSignalled$'`, os.Args[0])}
	s.cmd.Env = append(os.Environ(), signalledVariable+"=yes")
	stdout, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	s.stdin, err = s.cmd.StdinPipe()
	require.NoError(t, err)
	// What is caught here is not ignored there, however these tests were started.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP, syscall.SIGINT)
	defer signal.Stop(caught)
	require.NoError(t, s.cmd.Start())
	s.out, s.lines = stdout, bufio.NewScanner(stdout)
	s.requireLine("running")
	return s
}

func (s *signalled) requireLine(line string) {
	s.t.Helper()
	require.True(s.t, s.lines.Scan(), "it ended and did not say %q", line)
	require.Equal(s.t, line, s.lines.Text())
}

func (s *signalled) send(signal syscall.Signal) {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Signal(signal))
}

// wait lets it come to its end, and returns how it ended.
func (s *signalled) wait() error {
	s.t.Helper()
	require.NoError(s.t, s.stdin.Close())
	for s.lines.Scan() {
		if s.lines.Text() == "stopped in order" {
			continue
		}
		require.Equal(s.t, "PASS", s.lines.Text())
	}
	return s.cmd.Wait()
}

// TestAClosedTerminalStopsInOrder sends what one closed terminal sends, and what a machine that logs its user off adds.
func TestAClosedTerminalStopsInOrder(t *testing.T) {
	s := startSignalled(t, "")
	s.send(syscall.SIGHUP)
	s.requireLine("hangup signal received")
	s.send(syscall.SIGHUP)
	s.send(syscall.SIGTERM)
	require.NoError(t, s.wait())
}

func TestNohupOutlivesItsTerminal(t *testing.T) {
	s := startSignalled(t, "trap '' HUP; ")
	s.send(syscall.SIGHUP)
	s.send(syscall.SIGTERM)
	s.requireLine("terminated signal received")
	s.send(syscall.SIGHUP)
	require.NoError(t, s.wait())
}

func TestASecondCtrlCEndsAtOnce(t *testing.T) {
	s := startSignalled(t, "")
	s.send(syscall.SIGINT)
	s.requireLine("interrupt signal received")
	var exit *exec.ExitError
	s.send(syscall.SIGINT)
	require.ErrorAs(t, s.cmd.Wait(), &exit)
	require.Equal(t, syscall.SIGINT, exit.Sys().(syscall.WaitStatus).Signal())
}

// TestAReaderThatEndsFirst is Ctrl-C on `berth … | tee`, which ends tee first.
func TestAReaderThatEndsFirst(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGHUP} {
		s := startSignalled(t, "")
		require.NoError(t, s.out.Close())
		s.send(signal)
		require.NoError(t, s.stdin.Close())
		require.NoError(t, s.cmd.Wait())
	}
}

// TestAPatientProgramGetsTwoSignalsOfOneCtrlC sends the terminal's, and that of whoever started it.
func TestAPatientProgramGetsTwoSignalsOfOneCtrlC(t *testing.T) {
	s := startSignalled(t, signalledVariable+"=patient; export "+signalledVariable+"; ")
	s.send(syscall.SIGINT)
	s.requireLine("interrupt signal received")
	s.send(syscall.SIGTERM)
	s.send(syscall.SIGINT)
	require.NoError(t, s.wait())
}

func TestExitCodeIsThatOfTheSignal(t *testing.T) {
	for cause, code := range map[error]int{
		signals.Signal{Signal: syscall.SIGHUP}: 129, signals.Signal{Signal: syscall.SIGINT}: 130,
		signals.Signal{Signal: syscall.SIGTERM}:        143,
		fmt.Errorf("output closed: %w", syscall.EPIPE): 141, fmt.Errorf("output closed: %w", syscall.EIO): 129,
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		require.Equal(t, code, signals.ExitCode(ctx), "%v", cause)
	}
}

// TestReleased is a program that receives signals, and then executes another one.
func TestReleased(t *testing.T) {
	if os.Getenv(signalledVariable) != "released" {
		t.Skip("TestNoSignalIsLostAtARelease runs it")
	}
	ctx := signals.Context()
	fmt.Println("running")
	if err := signals.Release(ctx); err != nil {
		fmt.Println(err)
		os.Exit(signals.ExitCode(ctx))
	}
	require.NoError(t, syscall.Exec("/bin/cat", []string{"cat"}, nil))
}

// TestNoSignalIsLostAtARelease ends a program at about the moment when it executes another one, which does not handle the signal.
func TestNoSignalIsLostAtARelease(t *testing.T) {
	for range 20 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestReleased$")
		cmd.Env = append(os.Environ(), signalledVariable+"=released")
		_, err := cmd.StdinPipe() // cat waits for its end
		require.NoError(t, err)
		stdout, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		_, err = stdout.Read(make([]byte, 100))
		require.NoError(t, err)
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		out, err := io.ReadAll(stdout)
		require.NoError(t, err, "%s", out)
		require.Error(t, cmd.Wait(), "the signal ends it, or the program that it has executed")
	}
}
