package fsgroup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/volume"
)

const (
	readWrite        = 0o660
	readOnly         = 0o440
	dirBits          = 0o110 | unix.S_ISGID
	permBits         = 0o7777
	readBatch        = 1024
	maxDepth         = 512 // directories that are open at once
	firstProgress    = 30 * time.Second
	progressInterval = time.Minute
)

// Options are the options of Apply.
type Options struct {
	// GID is the new group of all files.
	GID int64
	// ReadOnly gives the group no write permission.
	ReadOnly bool
	// Policy OnRootMismatch skips a volume whose root directory has the group and mode already. Any other value means
	// Always.
	Policy corev1.PodFSGroupChangePolicy
	// OnProgress, if not nil, is called after 30 seconds and then each minute with the number of files visited so
	// far. It must not block.
	OnProgress func(files int64)
	// OnRefused, if not nil, is called at the end of a walk in which files kept their group or mode, with their number and
	// the first reason.
	OnRefused func(files int, reason error)
	// OnDone, if not nil, is called at the end of a walk over the files with its duration and result. It is not
	// called if the volume was skipped or ctx ended the walk.
	OnDone func(took time.Duration, err error)
	// Clock defaults to the real clock.
	Clock clock.WithTicker
}

// ApplyTo gives dir, where the volume of the request is mounted to be written to, to the Pod's group. Without a group it does nothing.
func ApplyTo(ctx context.Context, dir string, req volume.Request) error {
	if req.FSGroup == nil {
		return nil
	}
	_, err := Apply(ctx, dir, Options{
		GID: *req.FSGroup, Policy: req.FSGroupChangePolicy, OnProgress: req.OnOwnershipProgress,
		OnRefused: req.OnOwnershipRefused, OnDone: req.OnOwnershipChanged,
	})
	return err
}

// Apply makes all files and directories at and below dir belong to the group, and lets the group use them; new files
// in directories inherit the group. Only what differs is changed. Symbolic links get the group but are not followed,
// and other file systems mounted below are skipped, even if another process changes the tree meanwhile. A file that
// cannot be changed stays as it is, and is no error: a file system may have no groups, a file server may not accept
// them from the node, and a file may be immutable. It returns how many files and directories were changed.
func Apply(ctx context.Context, dir string, options Options) (changed int, err error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("set group of volume: %w", &os.PathError{Op: "open", Path: dir, Err: err})
	}
	defer func() { _ = unix.Close(fd) }()
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	w := &walker{ctx: ctx, gid: int(options.GID), mask: readWrite}
	if options.OnProgress != nil {
		defer options.reportProgress(&w.seen)()
	}
	if options.ReadOnly {
		w.mask = readOnly
	}
	var root unix.Stat_t
	if err := unix.Fstatat(fd, "", &root, unix.AT_EMPTY_PATH); err != nil {
		return 0, fmt.Errorf("set group of volume: %w", err)
	}
	if options.Policy == corev1.FSGroupChangeOnRootMismatch && w.matches(&root) {
		return 0, nil
	}
	began := options.Clock.Now()
	err = w.walk(fd, &root, dir)
	if w.refused > 0 && options.OnRefused != nil {
		options.OnRefused(w.refused, w.reason)
	}
	if options.OnDone != nil && (err == nil || ctx.Err() == nil) {
		options.OnDone(options.Clock.Since(began), err)
	}
	return w.changed, err
}

// walk applies the group to the tree whose root is open as fd (with O_PATH).
func (w *walker) walk(fd int, root *unix.Stat_t, dir string) error {
	// The root comes last: after an interrupted walk, OnRootMismatch must not skip the volume.
	if root.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := w.walkDir(fd, 0); err != nil {
			return fmt.Errorf("set group of volume %q: %w", dir, err)
		}
	}
	w.apply(fd, root, dir)
	return nil
}

type walker struct {
	ctx     context.Context
	gid     int
	mask    uint32
	changed int
	refused int   // how many files could not be changed
	reason  error // why the first of them could not
	seen    atomic.Int64
}

// reportProgress calls OnProgress periodically, until the function that it returns is called.
func (o Options) reportProgress(seen *atomic.Int64) (stop func()) {
	ended, done := make(chan struct{}), make(chan struct{})
	timer := o.Clock.NewTimer(firstProgress)
	go func() {
		defer contain.Recover("fsgroup.reportProgress", "")
		defer close(done)
		defer timer.Stop()
		for {
			select {
			case <-ended:
				return
			case <-timer.C():
				o.OnProgress(seen.Load())
				timer.Reset(progressInterval)
			}
		}
	}()
	return func() {
		close(ended)
		<-done
	}
}

// wantedMode returns the new mode of a file of this mode.
func (w *walker) wantedMode(mode uint32) uint32 {
	switch mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return mode & permBits
	case unix.S_IFDIR:
		return mode&permBits | w.mask | dirBits
	}
	return mode&permBits | w.mask
}

func (w *walker) matches(stat *unix.Stat_t) bool {
	return int64(stat.Gid) == int64(w.gid) && w.wantedMode(stat.Mode) == stat.Mode&permBits
}

// apply changes the group and mode of the file that is open as fd (with O_PATH), and counts it.
func (w *walker) apply(fd int, stat *unix.Stat_t, name string) {
	if w.matches(stat) {
		return
	}
	err := w.change(fd, stat)
	if err == nil {
		w.changed++
		return
	}
	if w.refused++; w.reason == nil {
		w.reason = fmt.Errorf("%q: %w", name, err)
	}
}

func (w *walker) change(fd int, stat *unix.Stat_t) error {
	if err := unix.Fchownat(fd, "", -1, w.gid, unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("change group: %w", err)
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFLNK {
		return nil
	}
	// fchmod refuses an O_PATH descriptor; its entry in /proc leads to the same file, not through a name.
	if err := unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), w.wantedMode(stat.Mode)); err != nil {
		return fmt.Errorf("change mode: %w", err)
	}
	return nil
}

// walkDir visits all entries of an opened directory.
func (w *walker) walkDir(dir, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("directories are nested deeper than %d", maxDepth)
	}
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "directory")
	defer func() { _ = file.Close() }()
	for {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		names, err := file.Readdirnames(readBatch)
		for _, name := range names {
			if err := w.walkEntry(fd, name, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list directory: %w", err)
		}
	}
}

// walkEntry visits one entry and everything below it.
func (w *walker) walkEntry(dir int, name string, depth int) error {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_BENEATH,
	})
	switch err {
	case nil:
	case unix.ENOENT, unix.EXDEV: // removed meanwhile; another mount
		return nil
	case unix.EAGAIN, unix.EINTR:
		return w.walkEntry(dir, name, depth)
	default:
		return fmt.Errorf("open %q: %w", name, err)
	}
	defer func() { _ = unix.Close(fd) }()
	w.seen.Add(1)
	var stat unix.Stat_t
	if err := unix.Fstatat(fd, "", &stat, unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("stat %q: %w", name, err)
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := w.walkDir(fd, depth+1); err != nil {
			return fmt.Errorf("in %q: %w", name, err)
		}
	}
	w.apply(fd, &stat, name)
	return nil
}
