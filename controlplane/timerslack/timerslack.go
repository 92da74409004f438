// Package timerslack lets the kernel run timers of this process late, so that several of them share one wake-up.
//
// An idle control plane has some three hundred timers a second, each of which does almost nothing: nearly all of its CPU time
// is that of waking up. Events and requests are not delayed; a timer is only late while the process does nothing else.
package timerslack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// monitor is the place of the thread of Go's runtime that releases the processors of blocked threads, among all threads in the
// order of their creation. It has to be on time.
const monitor = 1

// Set lets timers of the present threads, and of those that they create, be late by up to the duration.
func Set(late time.Duration) error {
	dir, err := os.Open("/proc/self/task")
	if err != nil {
		return fmt.Errorf("list the threads: %w", err)
	}
	threads, err := dir.Readdirnames(-1) // in the order of their creation
	if err := errors.Join(err, dir.Close()); err != nil {
		return fmt.Errorf("list the threads: %w", err)
	}
	for i, thread := range threads {
		if i == monitor {
			continue
		}
		path := filepath.Join("/proc", thread, "timerslack_ns")
		err := os.WriteFile(path, strconv.AppendInt(nil, late.Nanoseconds(), 10), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a thread may end meanwhile
			return fmt.Errorf("delay the timers of thread %s: %w", thread, err)
		}
	}
	return nil
}
