// Package boottime is a clock that goes on while the machine sleeps. The clock of the Go runtime and its timers stand still then: after a night
// in which a laptop has slept, what was to end in the evening would be valid until noon.
package boottime

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
)

// Clock is a clock.Clock. It shows the time of day at which it was made, and what has gone by since then, in which it differs from the machine's
// clock once that was set: it is for durations. Sleep and Tick are the runtime's. It is safe for concurrent use.
type Clock struct {
	clock.RealClock
	made time.Time // without the runtime's reading of its own clock
	from time.Duration
}

var _ clock.Clock = (*Clock)(nil)

// New returns a Clock.
func New() *Clock { return &Clock{made: time.Now().Round(0), from: sinceBoot()} }

func sinceBoot() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // every kernel that Go supports has it
	return time.Duration(now.Nano())
}

// Now implements clock.Clock.
func (c *Clock) Now() time.Time { return c.made.Add(sinceBoot() - c.from) }

// Since implements clock.Clock.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// After implements clock.Clock.
func (c *Clock) After(d time.Duration) <-chan time.Time { return c.NewTimer(d).C() }

// NewTimer implements clock.Clock. A timer has a descriptor until it fires or is stopped; if the process has none left, it is the runtime's.
func (c *Clock) NewTimer(d time.Duration) clock.Timer {
	t := &timer{clock: c, fired: make(chan time.Time, 1)}
	t.start(d)
	return t
}

// timer is a timer of the kernel.
type timer struct {
	clock *Clock
	fired chan time.Time

	mu  sync.Mutex
	now *run // nil while the timer does not run
}

// run is one wait of a timer. end ends it early.
type run struct{ end func() }

// C implements clock.Timer.
func (t *timer) C() <-chan time.Time { return t.fired }

// Stop implements clock.Timer: C has no value afterwards.
func (t *timer) Stop() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	stopped := t.now
	t.now = nil
	select {
	case <-t.fired:
	default:
	}
	if stopped != nil {
		stopped.end()
	}
	return stopped != nil
}

// Reset implements clock.Timer.
func (t *timer) Reset(d time.Duration) bool {
	active := t.Stop()
	t.start(d)
	return active
}

// start starts the timer, which does not run.
func (t *timer) start(d time.Duration) {
	one := &run{}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now = one
	file, err := open(d)
	if err != nil {
		after := time.AfterFunc(d, contain.Guard("boottime.timer", "", func() { t.fire(one) }))
		one.end = func() { after.Stop() }
		return
	}
	one.end = func() { _ = file.Close() } // which ends Read
	go contain.Guard("boottime.timer", "", func() {
		defer file.Close()
		var expirations [8]byte
		if _, err := file.Read(expirations[:]); err == nil {
			t.fire(one)
		}
	})()
}

// open returns a timer of the kernel that runs.
func open(d time.Duration) (*os.File, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make a timer: %w", err)
	}
	file := os.NewFile(uintptr(fd), "timerfd")
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(d, 1).Nanoseconds())} // zero would be a timer that does not run
	if err := unix.TimerfdSettime(fd, 0, &spec, nil); err != nil {
		return nil, errors.Join(fmt.Errorf("start a timer: %w", err), file.Close())
	}
	return file, nil
}

// fire sends the time unless the run was ended. The channel is empty: what an earlier run has sent was received or dropped.
func (t *timer) fire(one *run) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now == one {
		t.now = nil
		t.fired <- t.clock.Now()
	}
}
