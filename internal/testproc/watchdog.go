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

// watchdogVariable makes a test binary the watchdog of another process of it. Only test binaries import this package.
const watchdogVariable = "BERTH_TEST_GUARD"

// watchdogTimeout is how long a watchdog waits for each process that it kills.
const watchdogTimeout = time.Minute

// watchdogMessage adds resources to those that the watchdog cleans up, or removes them if Resources is nil.
type watchdogMessage struct {
	ID        int
	Resources *Resources
}

// watchdog is the watchdog of this process, once it is started.
var watchdog struct {
	sync.Mutex
	encoder *json.Encoder
	lastID  int
}

// CleanupOnCrash cleans up the resources if this process ends before the test does: by a signal, by the time limit of its
// tests, or by a panic. Another process of the test binary, the watchdog, does that.
func CleanupOnCrash(t testing.TB, l Resources) {
	t.Helper()
	watchdog.Lock()
	defer watchdog.Unlock()
	if watchdog.encoder == nil {
		require.NoError(t, startWatchdog())
	}
	watchdog.lastID++
	id := watchdog.lastID
	require.NoError(t, watchdog.encoder.Encode(watchdogMessage{id, &l}))
	t.Cleanup(func() {
		watchdog.Lock()
		defer watchdog.Unlock()
		require.NoError(t, watchdog.encoder.Encode(watchdogMessage{ID: id}))
	})
}

// startWatchdog starts this process's watchdog, which ends with it. It has a session of its own, because a signal may end
// the tests' whole process group, and inherits standard error, so that `go test` waits for it.
func startWatchdog() error {
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("create the pipe of the tests' watchdog: %w", err)
	}
	defer read.Close()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), watchdogVariable+"=yes")
	command.Stdin, command.Stderr = read, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return fmt.Errorf("start the tests' watchdog: %w", err)
	}
	watchdog.encoder = json.NewEncoder(write) // only the end of this process closes it
	return nil
}

// init does not return in a watchdog process: it runs no tests.
func init() {
	if os.Getenv(watchdogVariable) == "" {
		return
	}
	if err := runWatchdog(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "cleaning up after a test that was killed:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// runWatchdog reads messages until the sending process has ended, and then cleans up the remaining resources.
func runWatchdog(input io.Reader) error {
	open := make(map[int]*Resources)
	for decoder := json.NewDecoder(input); ; {
		var message watchdogMessage
		if err := decoder.Decode(&message); err != nil {
			break // the process may have ended in the middle of a message
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
