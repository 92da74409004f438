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
		start, err := tailStart(f.file, *opts.TailLines)
		if err == nil {
			_, err = f.file.Seek(start, io.SeekStart)
		}
		if err != nil {
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

// follower reads one log across its files.
type follower struct {
	path   string
	writer *recordWriter
	done   <-chan struct{}

	file    *os.File
	reader  *bufio.Reader
	pending []byte // the beginning of an incomplete line
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
		line, err := f.reader.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read log file %q: %w", f.path, err)
		}
		f.pending = append(f.pending, line...)
		if err != nil {
			return nil
		}
		if err := f.flush(); err != nil {
			return err
		}
	}
}

// flush writes the line that was read last, complete or not.
func (f *follower) flush() error {
	if len(f.pending) == 0 {
		return nil
	}
	line := f.pending
	f.pending = nil
	return f.writer.write(line)
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
