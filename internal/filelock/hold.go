package filelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
)

// retryPeriod is how often Hold tries to take a lock that another process holds: the kernel has no event for it.
const retryPeriod = 100 * time.Millisecond

// ErrContended is returned by Hold if another process opened or removed the lock file.
var ErrContended = errors.New("lock file contention: another process has opened the lock file")

// Hold waits until it has the lock of a file, creates the file if it is missing, calls run, and releases the lock when run
// has returned. With exitOnContention, run's context ends as soon as another process opens or removes the file, and the
// error then wraps ErrContended.
func Hold(ctx context.Context, clock clock.WithTicker, path string, exitOnContention bool, run func(context.Context) error) error {
	file, err := Wait(ctx, clock, path)
	if err != nil {
		return err
	}
	defer file.Close()
	if !exitOnContention {
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
			cancel(ErrContended)
		}
	}()
	err = run(ctx)
	err = errors.Join(err, watch.Close()) // ends the Read
	<-watched
	if cause := context.Cause(ctx); errors.Is(cause, ErrContended) {
		err = errors.Join(cause, err)
	}
	cancel(nil)
	return err
}

// Wait opens the file, creates it if it is missing, and waits until it has the lock or ctx ends. The caller releases the lock
// by closing the file.
func Wait(ctx context.Context, clock clock.WithTicker, path string) (*os.File, error) {
	file, err := open(path)
	if err != nil {
		return nil, err
	}
	if err := waitFor(ctx, clock, file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// WaitDir is Wait for a directory, which must exist.
func WaitDir(ctx context.Context, clock clock.WithTicker, path string) (*os.File, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := waitFor(ctx, clock, dir); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// waitFor waits for the lock until ctx ends.
func waitFor(ctx context.Context, clock clock.WithTicker, file *os.File) error {
	ticker := clock.NewTicker(retryPeriod)
	defer ticker.Stop()
	for {
		err := TryLock(file)
		if !errors.As(err, new(*HeldError)) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
		}
	}
}

// watchOpens returns an inotify file that becomes readable when a process opens or removes the file at path.
func watchOpens(path string) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch lock file: %w", err)
	}
	watch := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_OPEN|unix.IN_DELETE_SELF); err != nil {
		return nil, errors.Join(fmt.Errorf("watch lock file %q: %w", path, err), watch.Close())
	}
	return watch, nil
}
