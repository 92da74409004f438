package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/filelock"
)

// lockRetry is how often a lock is asked for that another process holds: the kernel has no event for it.
const lockRetry = 100 * time.Millisecond

// errContended is the end of a node agent that another one takes the place of.
var errContended = errors.New("another process wants the node agent's lock file: making room for it")

// holdLock takes the lock file, waiting for whoever has it, calls run, and lets it go when run has returned. With yield,
// run's context ends as soon as somebody else opens or removes the file, and the error then wraps errContended.
func holdLock(ctx context.Context, clk clock.WithTicker, path string, yield bool, run func(context.Context) error) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open the node agent's lock file: %w", err)
	}
	defer file.Close()
	if err := takeLock(ctx, clk, file); err != nil {
		return err
	}
	if !yield {
		return run(ctx)
	}
	watch, err := watchOpens(path)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if _, err := watch.Read(make([]byte, unix.SizeofInotifyEvent+unix.NAME_MAX+1)); err == nil {
			cancel(errContended)
		}
	}()
	err = run(ctx)
	err = errors.Join(err, watch.Close()) // ends the Read
	<-watched
	if cause := context.Cause(ctx); errors.Is(cause, errContended) {
		err = errors.Join(cause, err)
	}
	cancel(nil)
	return err
}

// takeLock waits for the lock until ctx ends.
func takeLock(ctx context.Context, clk clock.WithTicker, file *os.File) error {
	ticker := clk.NewTicker(lockRetry)
	defer ticker.Stop()
	for {
		err := filelock.TryLock(file)
		if !errors.As(err, new(*filelock.HeldError)) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
		}
	}
}

// watchOpens is read from when somebody opens or removes the file.
func watchOpens(path string) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch the node agent's lock file: %w", err)
	}
	watch := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_OPEN|unix.IN_DELETE_SELF); err != nil {
		return nil, errors.Join(fmt.Errorf("watch the node agent's lock file %q: %w", path, err), watch.Close())
	}
	return watch, nil
}
