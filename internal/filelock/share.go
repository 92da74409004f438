package filelock

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/contain"
)

// Share opens the file, creates it if it is missing, and locks it together with other processes that share it. The caller releases the
// lock by closing the file. It waits, shortly, only for a process in AwaitUnshared or FirstOf.
func Share(path string) (*os.File, error) { return lock(path, unix.LOCK_SH) }

// AwaitUnshared waits until no process shares the lock of the file, which it creates if it is missing, or ctx ends.
func AwaitUnshared(ctx context.Context, path string) error {
	file, err := FirstOf(ctx, []string{path})
	if err != nil {
		return err
	}
	return file.Close()
}

// FirstOf waits until it has the lock of any one of the files, creates those that are missing, or returns when ctx ends. The caller
// releases the lock by closing the file.
//
// The kernel wakes the threads that wait, one for each file. They end when they have their lock, which may be later than FirstOf.
func FirstOf(ctx context.Context, paths []string) (*os.File, error) {
	type result struct {
		file *os.File
		err  error
	}
	first, done := make(chan result), make(chan struct{})
	defer close(done)
	for _, path := range paths {
		go contain.Guard("filelock.FirstOf", path, func() {
			file, err := lock(path, unix.LOCK_EX)
			select {
			case first <- result{file, err}:
			case <-done:
				_ = file.Close() // another one was first
			}
		})()
	}
	var errs []error
	for range paths {
		select {
		case got := <-first:
			if got.err == nil {
				return got.file, nil
			}
			errs = append(errs, got.err)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return nil, errors.Join(errs...)
}

// lock opens the file, creates it if it is missing, and waits for the lock.
func lock(path string, how int) (*os.File, error) {
	file, err := open(path)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(file.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
	}
	return file, nil
}
