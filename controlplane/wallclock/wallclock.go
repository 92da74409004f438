// Package wallclock waits for a time of day. A timer of the Go runtime does not do that: it stands still while the machine sleeps, and
// does not notice that the clock is set.
package wallclock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Wait returns nil when the machine's clock shows until or was set, and the error of ctx when that ends before.
func Wait(ctx context.Context, until time.Time) error {
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("wait for a time of day: %w", err)
	}
	timer := os.NewFile(uintptr(fd), "timerfd")
	defer timer.Close()
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(until.UnixNano())}
	if err := unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET, &spec, nil); errors.Is(err, unix.ECANCELED) {
		return nil // the clock was set since the timer was made
	} else if err != nil {
		return fmt.Errorf("wait for a time of day: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = timer.SetReadDeadline(time.Unix(1, 0)) }) // it is in the past: Read ends
	defer stop()
	var expirations [8]byte
	_, err = timer.Read(expirations[:])
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil, errors.Is(err, unix.ECANCELED): // the clock was set
		return nil
	default:
		return fmt.Errorf("wait for a time of day: %w", err)
	}
}
