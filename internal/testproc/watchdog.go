package testproc

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// watchdogVariable makes a test binary the guard of another process of it. All that import this package are test binaries.
const watchdogVariable = "BERTH_TEST_GUARD"

// watchdogTimeout is how long a guard waits for processes that it kills.
const watchdogTimeout = time.Minute

// watchdogMessage is one line of what a guard is told: from now on, or no longer if Leavings is nil.
type watchdogMessage struct {
	ID        int
	Resources *Resources
}

// watchdog is this process's, once it has one.
var watchdog struct {
	sync.Mutex
	tell *json.Encoder
	last int
}

// CleanupOnCrash has what is named taken away as soon as this process ends before the test does, however it ends: by a signal, by
// the time limit of its tests, or by a panic. Another process of the test binary does that.
func CleanupOnCrash(t testing.TB, l Resources) {
	t.Helper()
	watchdog.Lock()
	defer watchdog.Unlock()
	if watchdog.tell == nil {
		require.NoError(t, startWatchdog())
	}
	watchdog.last++
	id := watchdog.last
	require.NoError(t, watchdog.tell.Encode(watchdogMessage{id, &l}))
	t.Cleanup(func() {
		watchdog.Lock()
		defer watchdog.Unlock()
		require.NoError(t, watchdog.tell.Encode(watchdogMessage{ID: id}))
	})
}

// startWatchdog starts this process's guard, which ends with it. It is in a session of its own, since whoever ends the tests
// may end all of theirs, and writes where they do, so that whoever runs them waits for it.
func startWatchdog() error {
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make the pipe of the tests' guard: %w", err)
	}
	defer read.Close()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), watchdogVariable+"=yes")
	command.Stdin, command.Stderr = read, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return fmt.Errorf("start the tests' guard: %w", err)
	}
	watchdog.tell = json.NewEncoder(write) // the end of this process closes it, and nothing else does
	return nil
}

// init does not return in a process that is to be a guard: it runs no tests.
func init() {
	if os.Getenv(watchdogVariable) == "" {
		return
	}
	if err := runWatchdog(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "what a test has left that was ended:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// runWatchdog reads what is to be guarded until the one who tells it has ended, and then wipes what is left.
func runWatchdog(input io.Reader) error {
	open := make(map[int]*Resources)
	for decoder := json.NewDecoder(input); ; {
		var message watchdogMessage
		if err := decoder.Decode(&message); err != nil {
			break // it may have ended in the middle of a line
		}
		if open[message.ID] = message.Resources; message.Resources == nil {
			delete(open, message.ID)
		}
	}
	all := Resources{}
	for _, l := range open {
		all.Dirs, all.Cgroups = append(all.Dirs, l.Dirs...), append(all.Cgroups, l.Cgroups...)
		all.Links, all.Files = append(all.Links, l.Links...), append(all.Files, l.Files...)
	}
	return all.Cleanup(context.Background(), watchdogTimeout)
}
