package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/controlplane/contain"
)

const (
	// nodeFirst is how long the controller manager and the scheduler leave the processors to the first report of a Node: they have nothing to
	// do before it.
	nodeFirst = time.Second
	// With --start-lock, starts of several clusters compete: togetherFirst is the limit in place of nodeFirst, and othersFirst how long the
	// Nodes of those clusters come first, too.
	togetherFirst, othersFirst = 10 * time.Second, 3 * time.Second
)

// headStart is what comes before the controller manager and the scheduler.
type headStart struct {
	// reported is closed when a Node has been reported.
	reported <-chan struct{}
	limit    time.Duration
	// lock is a file that other clusters share until their Nodes are ready; empty: there are none.
	lock string
}

// wait returns when what comes first is done, has had its time, or ctx ends.
func (h headStart) wait(ctx context.Context) {
	if h.limit == 0 {
		return
	}
	first, cancel := context.WithTimeout(ctx, h.limit)
	defer cancel()
	select {
	case <-h.reported:
	case <-first.Done():
	}
	if h.lock == "" {
		return
	}
	others, cancel := context.WithTimeout(ctx, othersFirst)
	defer cancel()
	if err := awaitUnshared(others, h.lock); err != nil && others.Err() == nil {
		klog.ErrorS(err, "Failed to wait for the clusters that start at the same time")
	}
}

// before returns run, which waits first.
func (h headStart) before(run func(ctx context.Context, ready func()) error) func(ctx context.Context, ready func()) error {
	return func(ctx context.Context, ready func()) error {
		h.wait(ctx)
		return run(ctx, ready)
	}
}

// awaitUnshared waits until no process shares the lock of a file, or ctx ends. The thread that waits for the kernel may end later.
func awaitUnshared(ctx context.Context, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("--start-lock: %w", err)
	}
	locked := make(chan error, 1)
	go contain.Guard("controlplane.startLock", func() {
		locked <- errors.Join(unix.Flock(int(file.Fd()), unix.LOCK_EX), file.Close())
	})()
	select {
	case err := <-locked:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
