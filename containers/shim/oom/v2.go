package oom

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/containers/shim/guard"
)

// watchedV2 is a container whose memory.events is watched.
type watchedV2 struct {
	id, file string
	kills    uint64
}

// addV2 follows memory.events of a cgroup of version 2.
func (w *Watcher) addV2(ctx context.Context, id, cgroup string) (stop func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.inotify == nil {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			return nil, fmt.Errorf("create an inotify instance: %w", err)
		}
		w.inotify = os.NewFile(uintptr(fd), "inotify")
		w.watched = make(map[int32]*watchedV2)
		guard.Go(ctx, "oom.v2", func() { w.readV2(ctx) })
	}
	file := filepath.Join(cgroup, "memory.events")
	kills, err := oomKills(file) // 0, unless the cgroup existed before
	if err != nil {
		return nil, err
	}
	// File.Fd would make the descriptor blocking.
	conn, err := w.inotify.SyscallConn()
	if err != nil {
		return nil, err
	}
	var watch int
	var failure error
	if err := conn.Control(func(fd uintptr) { watch, failure = unix.InotifyAddWatch(int(fd), file, unix.IN_MODIFY) }); err != nil {
		return nil, err
	}
	if failure != nil {
		return nil, fmt.Errorf("watch %s: %w", file, failure)
	}
	w.watched[int32(watch)] = &watchedV2{id: id, file: file, kills: kills}
	return func() { w.removeV2(int32(watch)) }, nil
}

func (w *Watcher) removeV2(watch int32) {
	w.mu.Lock()
	one := w.watched[watch]
	delete(w.watched, watch)
	w.mu.Unlock()
	if one == nil {
		return
	}
	w.checkV2(one) // the last kill may be the container's own end
	conn, err := w.inotify.SyscallConn()
	if err != nil {
		return
	}
	// The kernel has removed the watch if the cgroup is gone.
	_ = conn.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(watch)) })
}

func (w *Watcher) readV2(ctx context.Context) {
	buffer := make([]byte, 64*unix.SizeofInotifyEvent)
	for {
		n, err := w.inotify.Read(buffer)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				log.G(ctx).WithError(err).Error("failed to read memory events: OOM kills are no longer reported")
			}
			return
		}
		for rest := buffer[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			watch := int32(binary.NativeEndian.Uint32(rest))
			name := binary.NativeEndian.Uint32(rest[12:])
			rest = rest[min(len(rest), unix.SizeofInotifyEvent+int(name)):]
			w.mu.Lock()
			one := w.watched[watch]
			w.mu.Unlock()
			if one != nil {
				w.checkV2(one)
			}
		}
	}
}

// checkV2 reports the kills since the last check. Another check of the same container waits for that: the container's exit, which is
// published after the last one, must not come first.
func (w *Watcher) checkV2(one *watchedV2) {
	kills, err := oomKills(one.file)
	if err != nil {
		return // the cgroup is gone
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if kills > one.kills {
		one.kills = kills
		w.report(one.id)
	}
}

// oomKills reads oom_kill of a memory.events, or of a memory.oom_control of version 1.
func oomKills(file string) (uint64, error) {
	events, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer events.Close()
	lines := bufio.NewScanner(events)
	for lines.Scan() {
		if value, found := strings.CutPrefix(lines.Text(), "oom_kill "); found {
			return strconv.ParseUint(value, 10, 64)
		}
	}
	return 0, lines.Err()
}
