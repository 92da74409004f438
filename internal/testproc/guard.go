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

// guardVariable makes a test binary the guard of another process of it. All that import this package are test binaries.
const guardVariable = "BERTH_TEST_GUARD"

// guardPatience is how long a guard waits for processes that it kills.
const guardPatience = time.Minute

// guarded is one line of what a guard is told: from now on, or no longer if Leavings is nil.
type guarded struct {
	ID       int
	Leavings *Leavings
}

// guard is this process's, once it has one.
var guard struct {
	sync.Mutex
	tell *json.Encoder
	last int
}

// Guard has what is named taken away as soon as this process ends before the test does, however it ends: by a signal, by
// the time limit of its tests, or by a panic. Another process of the test binary does that.
func Guard(t testing.TB, l Leavings) {
	t.Helper()
	guard.Lock()
	defer guard.Unlock()
	if guard.tell == nil {
		require.NoError(t, startGuard())
	}
	guard.last++
	id := guard.last
	require.NoError(t, guard.tell.Encode(guarded{id, &l}))
	t.Cleanup(func() {
		guard.Lock()
		defer guard.Unlock()
		require.NoError(t, guard.tell.Encode(guarded{ID: id}))
	})
}

// startGuard starts this process's guard, which ends with it. It is in a session of its own, since whoever ends the tests
// may end all of theirs, and writes where they do, so that whoever runs them waits for it.
func startGuard() error {
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make the pipe of the tests' guard: %w", err)
	}
	defer read.Close()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), guardVariable+"=yes")
	command.Stdin, command.Stderr = read, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return fmt.Errorf("start the tests' guard: %w", err)
	}
	guard.tell = json.NewEncoder(write) // the end of this process closes it, and nothing else does
	return nil
}

// init does not return in a process that is to be a guard: it runs no tests.
func init() {
	if os.Getenv(guardVariable) == "" {
		return
	}
	if err := watch(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "what a test has left that was ended:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// watch reads what is to be guarded until the one who tells it has ended, and then wipes what is left.
func watch(told io.Reader) error {
	open := make(map[int]*Leavings)
	for decoder := json.NewDecoder(told); ; {
		var news guarded
		if err := decoder.Decode(&news); err != nil {
			break // it may have ended in the middle of a line
		}
		if open[news.ID] = news.Leavings; news.Leavings == nil {
			delete(open, news.ID)
		}
	}
	all := Leavings{}
	for _, l := range open {
		all.Dirs, all.Cgroups = append(all.Dirs, l.Dirs...), append(all.Cgroups, l.Cgroups...)
		all.Links, all.Files = append(all.Links, l.Links...), append(all.Files, l.Files...)
	}
	return all.Wipe(context.Background(), guardPatience)
}
