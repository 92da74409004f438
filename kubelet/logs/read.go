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

// Read copies the log file at path to stdout and stderr as the options say; a nil writer leaves its stream out. It
// returns nil at the end of the log, or of the part that is asked for. A follower reads on in the new file when the
// log is rotated, and returns the context's error when that ends first.
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

// follower reads one log, file after file.
type follower struct {
	path   string
	writer *recordWriter
	done   <-chan struct{}

	file    *os.File
	reader  *bufio.Reader
	pending []byte // the beginning of a line that is not complete yet
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

// follow reads until the container is done.
func (f *follower) follow(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch log file %q: %w", f.path, err)
	}
	defer func() { _ = watcher.Close() }()
	if err := watcher.Add(filepath.Dir(f.path)); err != nil { // the directory: rotation makes another file
		return fmt.Errorf("watch directory of log file %q: %w", f.path, err)
	}
	for {
		if err := f.drain(ctx); err != nil {
			return err
		}
		// A new file with something in it means that the runtime has let go of the old one.
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
			// A queue that ran over only means that much has happened, and the next look sees all of it.
			if err != nil && !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fmt.Errorf("watch log file %q: %w", f.path, err)
			}
		}
	}
}

// finish reads what is left after the container's end.
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

// switchFile goes over to the file that has taken the place of the one that is read, if there is one; without final only
// if it holds something. It says whether it has.
func (f *follower) switchFile(ctx context.Context, final bool) (bool, error) {
	current, err := os.Stat(f.path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // between two files, or gone with its container
	}
	if err != nil {
		return false, fmt.Errorf("look at log file: %w", err)
	}
	opened, err := f.file.Stat()
	if err != nil {
		return false, fmt.Errorf("look at log file %q: %w", f.path, err)
	}
	if os.SameFile(opened, current) || current.Size() == 0 && !final {
		return false, nil
	}
	// What came into the old file since it was read last comes before all of the new one.
	if err := f.drain(ctx); err != nil {
		return false, err
	}
	if err := f.flush(); err != nil {
		return false, err
	}
	return true, f.open()
}
