// Package idletuner makes this process need less CPU time while the cluster is not in use: the kernel runs timers late, so that
// several of them share one wake-up, and Go uses one processor, so that a wake-up wakes one thread.
//
// An idle control plane has some three hundred timers a second, each of which does almost nothing: nearly all of its CPU time
// is that of waking up, and of threads that look for work beside the one that has some. But Go's runtime sleeps for
// microseconds, too, when it looks for work, and a thread that sleeps for too long then is missing. So timers are on time and
// all processors are used from a request until some time after the last one.
package idletuner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Tuner delays the timers of this process and limits it to one processor while it is not in use. Use New.
type Tuner struct {
	late, rest time.Duration
	// uses counts the calls of Use. asleep is set while timers are late; then Use sends to woken.
	uses   atomic.Uint64
	asleep atomic.Bool
	woken  chan struct{}
}

// New returns a tuner that lets timers be late by up to late when Use was not called for the time rest.
func New(late, rest time.Duration) *Tuner {
	return &Tuner{late: late, rest: rest, woken: make(chan struct{}, 1)}
}

// Use reports that the process is in use, which ends the delay and the limit at once. It is cheap and safe for concurrent use.
func (t *Tuner) Use() {
	t.uses.Add(1)
	if t.asleep.Load() {
		select {
		case t.woken <- struct{}{}:
		default: // it is known
		}
	}
}

// Run delays and limits the process while it is not in use, until ctx ends. Run it once, after the start. It changes the whole
// process; nothing else may call runtime.GOMAXPROCS.
func (t *Tuner) Run(ctx context.Context) error {
	usual, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("read the precision of timers: %w", err)
	}
	for {
		seen, resting := t.waitRest(ctx)
		if !resting {
			return nil
		}
		if err := t.sleep(ctx, seen, time.Duration(usual)); err != nil {
			return err
		}
	}
}

// sleep delays the timers and uses one processor until Use is called or ctx ends. Seen is how many calls there were before: one
// that came since, but before asleep was set, has sent nothing.
func (t *Tuner) sleep(ctx context.Context, seen uint64, usual time.Duration) error {
	t.asleep.Store(true)
	if t.uses.Load() != seen {
		t.asleep.Store(false)
		return nil
	}
	defer limitToOneProcessor()()
	err := delayTimers(t.late)
	if err == nil {
		select {
		case <-t.woken:
		case <-ctx.Done():
		}
	}
	t.asleep.Store(false)
	return errors.Join(err, delayTimers(usual))
}

// limitToOneProcessor makes Go run goroutines on one processor until the function that it returns is called.
func limitToOneProcessor() (restore func()) {
	usual := runtime.GOMAXPROCS(1)
	return func() {
		if os.Getenv("GOMAXPROCS") != "" {
			runtime.GOMAXPROCS(usual)
			return
		}
		runtime.SetDefaultGOMAXPROCS() // which follows changes of the cgroup's limit, unlike a number
	}
}

// waitRest waits until Use was not called for a while. It returns how many calls there were, and false if ctx has ended.
func (t *Tuner) waitRest(ctx context.Context) (seen uint64, resting bool) {
	pause := time.NewTicker(t.rest)
	defer pause.Stop()
	for {
		seen = t.uses.Load()
		select {
		case <-pause.C:
		case <-ctx.Done():
			return seen, false
		}
		if t.uses.Load() == seen {
			return seen, true
		}
	}
}

// delayTimers lets the timers of all threads, and of those that they create, be late by up to the duration.
func delayTimers(late time.Duration) error {
	done := make(map[string]bool)
	for before := -1; before < len(done); { // until no thread came meanwhile, which may have the value of one that created it
		before = len(done)
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("list the threads: %w", err)
		}
		for _, thread := range threads {
			if done[thread.Name()] {
				continue
			}
			done[thread.Name()] = true
			path := filepath.Join("/proc", thread.Name(), "timerslack_ns")
			err := os.WriteFile(path, strconv.AppendInt(nil, late.Nanoseconds(), 10), 0)
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) { // a thread may end meanwhile
				return fmt.Errorf("delay the timers of thread %s: %w", thread.Name(), err)
			}
		}
	}
	return nil
}
