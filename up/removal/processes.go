package removal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// StopTimeout is how long a process may take to stop after SIGTERM before it is killed.
	StopTimeout = 20 * time.Second
	// killTimeout is how long a killed process may take to end: the kernel first releases its resources, which takes long on
	// a loaded machine.
	killTimeout = 2 * time.Minute
)

// stopSequence is a way to stop a process: the signals to send and how long to wait after each.
type stopSequence []struct {
	signal unix.Signal
	limit  time.Duration
}

// StopProcess stops a process that is not a child: SIGTERM, and SIGKILL if it does not exit within StopTimeout.
func StopProcess(ctx context.Context, pid int) error {
	return stopSequence{{unix.SIGTERM, StopTimeout}, {unix.SIGKILL, killTimeout}}.run(ctx, pid)
}

// KillProcess kills a process that is not a child.
func KillProcess(ctx context.Context, pid int) error {
	return stopSequence{{unix.SIGKILL, killTimeout}}.run(ctx, pid)
}

func (e stopSequence) run(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	for _, try := range e {
		if err := unix.PidfdSendSignal(fd, try.signal, nil, 0); err != nil {
			if errors.Is(err, unix.ESRCH) {
				return nil
			}
			return fmt.Errorf("signal process %d: %w", pid, err)
		}
		gone, err := waitExit(ctx, fd, try.limit)
		if err != nil || gone {
			return err
		}
	}
	return fmt.Errorf("process %d did not exit after SIGKILL", pid)
}

// waitExit waits until the process of the pidfd has exited, which makes the descriptor readable.
func waitExit(ctx context.Context, fd int, limit time.Duration) (bool, error) {
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline))
	}
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(poll, int(limit.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("wait for a process to end: %w", err)
		}
		return n > 0, ctx.Err()
	}
}
