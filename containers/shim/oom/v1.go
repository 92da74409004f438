package oom

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/containers/shim/guard"
)

// addV1 follows memory.oom_control of a memory cgroup of version 1.
func (w *Watcher) addV1(ctx context.Context, id, cgroup string) (stop func(), err error) {
	control, err := os.Open(filepath.Join(cgroup, "memory.oom_control"))
	if err != nil {
		return nil, err
	}
	defer control.Close()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create an eventfd: %w", err)
	}
	events := os.NewFile(uintptr(fd), "oom events of "+id)
	if err := register(cgroup, fd, int(control.Fd())); err != nil {
		return nil, errors.Join(err, events.Close())
	}
	var reported atomic.Bool
	guard.Go(ctx, "oom.v1", func() {
		var count [8]byte
		for {
			if _, err := events.Read(count[:]); err != nil {
				return // stopped
			}
			// The removal of the cgroup is an event, too.
			if _, err := os.Stat(filepath.Join(cgroup, "memory.oom_control")); err != nil {
				return
			}
			reported.Store(true)
			w.report(id)
		}
	})
	return func() {
		_ = events.Close()
		// The container may have ended by a kill whose event has not been read yet.
		if kills, err := oomKills(control.Name()); err == nil && kills > 0 && !reported.Load() {
			w.report(id)
		}
	}, nil
}

// register lets the kernel write to an eventfd when the cgroup of an open memory.oom_control is out of memory.
func register(cgroup string, eventfd, control int) error {
	file, err := os.OpenFile(filepath.Join(cgroup, "cgroup.event_control"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(file, "%d %d", eventfd, control)
	return errors.Join(err, file.Close())
}
