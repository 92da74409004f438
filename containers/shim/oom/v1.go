package oom

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/containers/shim/guard"
)

// watchedV1 is a container whose memory.oom_control is watched. The watcher's mutex guards reported and stopped.
type watchedV1 struct {
	id, control       string
	reported, stopped bool
}

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
	watched := &watchedV1{id: id, control: control.Name()}
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
			w.reportV1(watched)
		}
	})
	return func() {
		_ = events.Close()
		w.stopV1(watched)
	}, nil
}

// reportV1 reports a kill, unless the watch has been stopped.
func (w *Watcher) reportV1(one *watchedV1) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !one.stopped {
		one.reported = true
		w.report(one.id)
	}
}

// stopV1 reports the kill by which the container may have ended, if its event has not been read yet, and lets none be reported later.
func (w *Watcher) stopV1(one *watchedV1) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one.stopped = true
	if kills, err := oomKills(one.control); err == nil && kills > 0 && !one.reported {
		w.report(one.id)
	}
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
