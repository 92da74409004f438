package logs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// Read copies the log file at path to stdout and stderr as the options say; a nil writer omits its stream. It returns
// nil at the end of the log, or of the requested part. A follower continues in the new file when the log is rotated,
// and returns the context's error when that ends first.
func Read(ctx context.Context, path string, opts Options, stdout, stderr io.Writer) error {
	f := &follower{path: path, writer: newRecordWriter(opts, stdout, stderr), done: opts.Done}
	if err := f.open(); err != nil {
		return err
	}
	defer func() { _ = f.file.Close() }()
	if opts.TailLines != nil {
		if err := f.seekTail(ctx, *opts.TailLines); err != nil {
			return fmt.Errorf("find the last %d lines of log file %q: %w", *opts.TailLines, path, err)
		}
		if *opts.TailLines == 0 && !opts.Follow {
			return nil
		}
	}
	var err error
	if opts.Follow {
		err = f.follow(ctx)
	} else if err = f.drain(ctx); err == nil {
		err = f.flush()
	}
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

// maxPiece is how much of a record is kept in memory, in bytes: more than the 16 KiB of the longest record of containerd and
// CRI-O.
const maxPiece = 64 << 10

// follower reads one log across its files.
type follower struct {
	path   string
	writer *recordWriter
	done   <-chan struct{}

	file    *os.File
	reader  *bufio.Reader
	pending []byte // the beginning of an incomplete line, or what follows the pieces of it that are written
	begun   bool   // a piece of the line is written
}

// seekTail continues with the last n lines.
func (f *follower) seekTail(ctx context.Context, n int64) error {
	info, err := f.file.Stat()
	if err != nil {
		return err
	}
	start, err := tailStart(ctx, f.file, info.Size(), n)
	if err == nil {
		_, err = f.file.Seek(start, io.SeekStart)
	}
	return err
}

func (f *follower) open() error {
	file, err := os.Open(f.path)
	if err != nil {
		return fmt.Errorf("open log file: %w", err)
	}
	if f.file != nil {
		_ = f.file.Close()
	}
	f.file, f.reader = file, bufio.NewReader(file)
	return nil
}

// drain writes all complete lines up to the end of the file.
func (f *follower) drain(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		piece, err := f.reader.ReadSlice('\n')
		f.pending = append(f.pending, piece...)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, bufio.ErrBufferFull) && len(f.pending) < maxPiece:
			continue
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("read log file %q: %w", f.path, err)
		}
		if err := f.writePending(err == nil); err != nil {
			return err
		}
	}
}

// flush writes the line that was read last, complete or not.
func (f *follower) flush() error {
	if len(f.pending) == 0 {
		f.begun = false
		return nil
	}
	return f.writePending(true)
}

// writePending writes what was read of a line. complete is set for its last piece.
func (f *follower) writePending(complete bool) error {
	begun := f.begun
	f.begun = !complete
	defer func() { f.pending = f.pending[:0] }()
	if begun {
		return f.writer.writeRest(f.pending)
	}
	return f.writer.write(f.pending)
}

// follow reads until the container has ended.
func (f *follower) follow(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch log file %q: %w", f.path, err)
	}
	defer func() { _ = watcher.Close() }()
	if err := watcher.Add(filepath.Dir(f.path)); err != nil { // the directory: rotation creates another file
		return fmt.Errorf("watch directory of log file %q: %w", f.path, err)
	}
	for {
		if err := f.drain(ctx); err != nil {
			return err
		}
		// A new file that is not empty means that the runtime has closed the old one.
		if switched, err := f.switchFile(ctx, false); err != nil {
			return err
		} else if switched {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.done:
			return f.finish(ctx)
		case <-watcher.Events:
		case err := <-watcher.Errors:
			// After an overflow of the event queue the next read still finds everything.
			if err != nil && !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fmt.Errorf("watch log file %q: %w", f.path, err)
			}
		}
	}
}

// finish reads the rest after the container has ended.
func (f *follower) finish(ctx context.Context) error {
	for {
		if err := f.drain(ctx); err != nil {
			return err
		}
		switched, err := f.switchFile(ctx, true)
		if err != nil {
			return err
		}
		if !switched {
			return f.flush()
		}
	}
}

// switchFile opens the file that has replaced the current one, if there is one; unless final is set, only if it is not
// empty. It reports whether it did.
func (f *follower) switchFile(ctx context.Context, final bool) (bool, error) {
	current, err := os.Stat(f.path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // between two files, or removed with its container
	}
	if err != nil {
		return false, fmt.Errorf("stat log file: %w", err)
	}
	opened, err := f.file.Stat()
	if err != nil {
		return false, fmt.Errorf("stat log file %q: %w", f.path, err)
	}
	if os.SameFile(opened, current) || current.Size() == 0 && !final {
		return false, nil
	}
	// What was written to the old file since the last read precedes the content of the new one.
	if err := f.drain(ctx); err != nil {
		return false, err
	}
	if err := f.flush(); err != nil {
		return false, err
	}
	return true, f.open()
}
