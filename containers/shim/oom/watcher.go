package oom

import (
	"context"
	"fmt"
	"os"
	"sync"
)

// Watcher follows the memory cgroups of a shim's containers. It is safe for concurrent use.
type Watcher struct {
	report func(id string)

	mu      sync.Mutex // guards below, and is held during a report
	inotify *os.File   // nil before the first container of version 2
	watched map[int32]*watchedV2
}

// New returns a watcher that calls report with a container's id for each OOM kill that it sees. report must not block, nor call the
// watcher.
func New(report func(id string)) *Watcher { return &Watcher{report: report} }

// Add follows the container's cgroups, as runc's state has them: by controller on version 1, one with an empty key on version 2. The
// caller calls stop when the container has ended; all of its kills are reported when stop returns. Without a memory cgroup there is nothing to follow.
func (w *Watcher) Add(ctx context.Context, id string, cgroups map[string]string) (stop func(), err error) {
	if memory := cgroups["memory"]; memory != "" { // on a machine with both versions memory is of version 1
		stop, err = w.addV1(ctx, id, memory)
	} else if unified := cgroups[""]; unified != "" {
		stop, err = w.addV2(ctx, id, unified)
	} else {
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("follow the OOM kills of container %s: %w", id, err)
	}
	return stop, nil
}
