package rotate

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// writeEvents reports the next write to files, once for each request. It is safe for concurrent use.
type writeEvents struct {
	inotify *os.File
	onWrite func(id string)

	mu  sync.Mutex // guards ids, and is held while a watch is added
	ids map[int32]string
}

// newWriteEvents returns writeEvents that call onWrite, which must not block.
func newWriteEvents(onWrite func(id string)) (*writeEvents, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch logs for writes: %w", err)
	}
	return &writeEvents{inotify: os.NewFile(uintptr(fd), "inotify"), onWrite: onWrite, ids: map[int32]string{}}, nil
}

// watch requests the event of the next write to the file.
func (w *writeEvents) watch(id, path string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var watch int
	var err error
	control, raw := w.inotify.SyscallConn()
	if raw != nil {
		return raw
	}
	if failed := control.Control(func(fd uintptr) {
		watch, err = unix.InotifyAddWatch(int(fd), path, unix.IN_MODIFY|unix.IN_ONESHOT|unix.IN_DONT_FOLLOW)
	}); failed != nil {
		return failed
	}
	if err != nil {
		return fmt.Errorf("watch log %q for writes: %w", path, err)
	}
	w.ids[int32(watch)] = id
	return nil
}

// Start calls onWrite for each event until ctx ends.
func (w *writeEvents) Start(ctx context.Context, logger *slog.Logger) {
	defer context.AfterFunc(ctx, func() { _ = w.inotify.Close() })()
	buffer := make([]byte, 4096)
	for {
		n, err := w.inotify.Read(buffer)
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, os.ErrClosed) {
				logger.Warn("failed to read which logs are written to; they are checked periodically", "error", err)
			}
			return
		}
		w.dispatch(buffer[:n])
	}
}

// dispatch handles the events in the buffer: their fixed part is a watch, a mask, a cookie and the length of the name that
// follows.
func (w *writeEvents) dispatch(buffer []byte) {
	for len(buffer) >= unix.SizeofInotifyEvent {
		watch := int32(binary.NativeEndian.Uint32(buffer))
		mask := binary.NativeEndian.Uint32(buffer[4:])
		size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(buffer[12:]))
		buffer = buffer[min(size, len(buffer)):]
		for _, id := range w.writtenTo(watch, mask) {
			w.onWrite(id)
		}
	}
}

// writtenTo returns the logs that an event reports to be written to.
func (w *writeEvents) writtenTo(watch int32, mask uint32) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	id, known := w.ids[watch]
	if mask&unix.IN_IGNORED != 0 {
		delete(w.ids, watch) // the kernel has removed the watch: after its event, or with the file
	}
	switch {
	case mask&unix.IN_Q_OVERFLOW != 0:
		return slices.Collect(maps.Values(w.ids))
	case known && mask&unix.IN_MODIFY != 0:
		return []string{id}
	}
	return nil
}

// forget drops the watches of a log.
func (w *writeEvents) forget(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	control, err := w.inotify.SyscallConn()
	if err != nil {
		return
	}
	for watch, other := range w.ids {
		if other != id {
			continue
		}
		delete(w.ids, watch)
		_ = control.Control(func(fd uintptr) {
			_, _ = unix.InotifyRmWatch(int(fd), uint32(watch)) // it may be gone already
		})
	}
}
