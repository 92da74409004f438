package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/pidfile"
)

// recorder is a Display that a test can wait for.
type recorder struct {
	mu    sync.Mutex
	lines []string
	added chan struct{}
}

func newRecorder() *recorder { return &recorder{added: make(chan struct{}, 1000)} }

func (r *recorder) add(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
	r.added <- struct{}{}
}

func (r *recorder) Starting(name string)              { r.add("starting " + name) }
func (r *recorder) Ready(name, _ string)              { r.add("ready " + name) }
func (r *recorder) Failed(name string, err error)     { r.add("failed " + name + ": " + err.Error()) }
func (r *recorder) Printf(format string, args ...any) { r.add(fmt.Sprintf(format, args...)) }

// wait waits for a line with the text.
func (r *recorder) wait(t *testing.T, text string) {
	t.Helper()
	for {
		r.mu.Lock()
		all := strings.Join(r.lines, "\n")
		r.mu.Unlock()
		if strings.Contains(all, text) {
			return
		}
		select {
		case <-r.added:
		case <-time.After(time.Minute):
			t.Fatalf("%q was not shown, but\n%s", text, all)
		}
	}
}

// nodeVariable makes TestNode the node's process of the other tests; its value says what that does.
const nodeVariable = "BERTH_TEST_NODE"

// TestNode requests the program `sleep` unless it runs, and ends as its environment says.
func TestNode(t *testing.T) {
	mode := os.Getenv(nodeVariable)
	if mode == "" {
		t.Skip("the other tests run it")
	}
	link := os.NewFile(LinkFD, "link")
	in, out := json.NewDecoder(link), json.NewEncoder(link)
	var hello Hello
	require.NoError(t, in.Decode(&hello))
	say := func(request Request) { require.NoError(t, out.Encode(request)) }
	if hello.Task == TaskCleanup {
		say(Request{Kind: KindPrint, Text: "cleaned up with " + string(hello.Config)})
		say(Request{Kind: KindDone})
		return
	}
	if mode == "crash" {
		os.Exit(3)
	}
	if mode != "late" || hello.Restarts > 0 { // the first one ends before all is ready
		say(Request{Kind: KindUp, Text: "all of it"})
	}
	var wanted Program
	require.NoError(t, json.Unmarshal(hello.Config, &wanted))
	if lines, runs := hello.Running[wanted.Name]; !runs {
		say(Request{Kind: KindStart, Program: &wanted})
	} else {
		say(Request{Kind: KindPrint, Text: fmt.Sprintf("found it with %s, ready before: %t", strings.Join(lines, ","), hello.Up)})
	}
	say(Request{Kind: KindStarted})
	for {
		var event Event
		require.NoError(t, in.Decode(&event))
		switch {
		case event.Stop:
			say(Request{Kind: KindStop, Name: wanted.Name})
		case event.Line != nil:
			say(Request{Kind: KindReady, Name: *event.Line})
		default:
			say(Request{Kind: KindPrint, Text: "it ended: " + event.Error})
			say(Request{Kind: KindDone})
			return
		}
	}
}

// newTestSupervisor returns a supervisor whose node's process is TestNode, which requests a program.
func newTestSupervisor(t *testing.T, mode string, wanted Program) (*Supervisor, *recorder) {
	t.Helper()
	config, err := json.Marshal(wanted)
	require.NoError(t, err)
	dir, display := t.TempDir(), newRecorder()
	s, err := New(Deps{Display: display, Logger: slog.New(slog.DiscardHandler), Clock: clock.RealClock{}}, Plan{
		Config: config, Clean: true, Stopped: "all ended", Node: Program{
			Name: "node", Argv: []string{os.Args[0], "-test.run=^TestNode$"}, Env: append(os.Environ(), nodeVariable+"="+mode),
			Log: filepath.Join(dir, "node.log"), PIDFile: filepath.Join(dir, "node.pid"),
		},
	})
	require.NoError(t, err)
	return s, display
}

// waitPID waits for a pid file, which is written after the process has started.
func waitPID(t *testing.T, path string) (pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		pid = pidfile.Running(pidfile.Proc, path)
		return pid != 0
	}, time.Minute, time.Millisecond)
	return pid
}

func TestTheNodesProcessFindsItsPrograms(t *testing.T) {
	wanted := shell(t, "echo up; exec sleep 1000")
	wanted.Lines = true
	s, display := newTestSupervisor(t, "late", wanted)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	display.wait(t, "ready up")
	pid := waitPID(t, wanted.PIDFile)
	for _, wasUp := range []bool{false, true} {
		node, err := os.FindProcess(waitPID(t, s.plan.Node.PIDFile))
		require.NoError(t, err)
		require.NoError(t, node.Kill())
		display.wait(t, "node exited: node exited unexpectedly (signal: killed)")
		display.wait(t, fmt.Sprintf("found it with up, ready before: %t", wasUp))
		display.mu.Lock()
		display.lines = nil
		display.mu.Unlock()
		require.Equal(t, pid, pidfile.Running(pidfile.Proc, wanted.PIDFile), "its program runs on")
	}
	cancel()
	require.NoError(t, <-ended)
	display.wait(t, "all ended")
	display.wait(t, "cleaned up with ")
	require.Zero(t, pidfile.Running(pidfile.Proc, wanted.PIDFile))
}

func TestANodeThatNeverStartsEndsTheStart(t *testing.T) {
	s, display := newTestSupervisor(t, "crash", Program{})
	require.ErrorContains(t, s.Run(t.Context()), "node exited unexpectedly (exit status 3)")
	display.wait(t, "cleaned up with ")
}

// TestAProgramThatHangsIsStartedAgain replaces the reply of a program's health socket by silence.
func TestAProgramThatHangsIsStartedAgain(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "health")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer listener.Close()
	replies := make(chan bool, 10)
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if <-replies {
				_, _ = io.WriteString(conn, "ok")
			}
			_ = conn.Close()
		}
	}()
	fake := clocktesting.NewFakeClock(time.Unix(0, 0))
	p := shell(t, "exec sleep 1000")
	p.Health = &Health{Network: "unix", Address: socket, Timeout: time.Minute, Failures: 2}
	ended := make(chan error, 1)
	go func() { ended <- p.run(t.Context(), running{clock: fake}) }()
	for _, healthy := range []bool{false, false, false, true, false, true, false, false} { // before its first reply it only starts
		replies <- healthy
		select {
		case err := <-ended:
			t.Fatalf("it was killed too early: %v", err)
		default:
		}
		require.Eventually(t, func() bool { return fake.HasWaiters() || len(ended) > 0 }, time.Minute, time.Millisecond)
		fake.Step(healthPeriod)
	}
	err = <-ended
	require.ErrorContains(t, err, "thing hung and was killed: 2 checks of its health in a row failed")
	require.NoError(t, listener.Close())
	<-served
}

// TestProgramThatNeverRespondsHangs has no socket to reply on: the program is killed when its start has taken too long.
func TestProgramThatNeverRespondsHangs(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Unix(0, 0))
	p := shell(t, "exec sleep 1000")
	p.Health = &Health{Network: "unix", Address: filepath.Join(t.TempDir(), "none.sock"), Timeout: time.Minute, Failures: 2}
	ended := make(chan error, 1)
	healthy := func() { t.Error("it does not respond") }
	go func() { ended <- p.run(t.Context(), running{clock: fake, onHealthy: healthy}) }()
	for range int(startLimit / startPeriod) {
		require.Eventually(t, func() bool { return fake.HasWaiters() || len(ended) > 0 }, time.Minute, time.Millisecond)
		require.Empty(t, ended, "it may still start")
		fake.Step(startPeriod)
	}
	require.ErrorContains(t, <-ended, "thing hung and was killed: it did not respond within 10m0s of its start")
}

func TestRestartWaitsLongerEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var delays []time.Duration
		Restart(t.Context(), clock.RealClock{}, func() error {
			if len(delays) == 8 {
				time.Sleep(resetDelayAfter)
			}
			return errors.New("no")
		}, func(_ error, delay time.Duration) bool {
			delays = append(delays, delay)
			return len(delays) < 9
		})
		require.Equal(t, []time.Duration{
			minRestartDelay, 2 * minRestartDelay, 4 * minRestartDelay, 8 * minRestartDelay, 16 * minRestartDelay,
			32 * minRestartDelay, maxRestartDelay, maxRestartDelay, minRestartDelay,
		}, delays)
	})
}
