package stdio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/containerd/log"

	"github.com/berth-dev/berth/containers/shim/guard"
)

// Config names the streams of one process; an empty name is /dev/null.
type Config struct {
	Stdin, Stdout, Stderr string
	Terminal              bool
	// UID and GID own the pipes.
	UID, GID int
}

// Streams are the standard streams of one process. Their life is New, Start once the process runs, Ended once it has ended, Drain,
// Close; Close alone ends them at any time. CloseInput and Resize may be called at any time between.
type Streams struct {
	config Config
	stdin  *source
	out    []*output

	mu       sync.Mutex // guards below
	input    *os.File   // to the process's standard input
	terminal *console   // with a terminal: nil before Start
	closed   bool

	process []*os.File // the process's ends until Start
	copying sync.WaitGroup
}

// output is one of standard output and standard error.
type output struct {
	from *os.File // nil with a terminal
	to   *sink
}

// New opens the streams. The process's ends are for [Streams.Files].
func New(config Config) (_ *Streams, err error) {
	s := &Streams{config: config, process: make([]*os.File, 3)}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if config.Stdin != "" {
		if s.stdin, err = openSource(config.Stdin); err != nil {
			return nil, err
		}
		if !config.Terminal {
			if s.input, s.process[0], err = pipe(false, config.UID, config.GID); err != nil {
				return nil, err
			}
		}
	}
	names := []string{config.Stdout, config.Stderr}
	if config.Terminal {
		names = names[:1] // a terminal has one output
	}
	for i, name := range names {
		if name == "" {
			continue
		}
		one := &output{}
		s.out = append(s.out, one)
		if one.to, err = openSink(name); err != nil {
			return nil, err
		}
		if !config.Terminal {
			if one.from, s.process[1+i], err = pipe(true, config.UID, config.GID); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

// Files returns the process's standard input, output and error; nil stands for /dev/null. They are closed by Start.
func (s *Streams) Files() (stdin, stdout, stderr *os.File) {
	return s.process[0], s.process[1], s.process[2]
}

// Start begins to copy. master is the process's terminal if it has one; the streams own it from here on.
func (s *Streams) Start(ctx context.Context, master *os.File) error {
	for i, file := range s.process {
		if file != nil {
			_ = file.Close()
			s.process[i] = nil
		}
	}
	if s.config.Terminal {
		if master == nil {
			return errors.New("start the streams: no terminal came from the process")
		}
		return s.startTerminal(ctx, master)
	}
	for _, one := range s.out {
		s.copying.Add(1)
		guard.Go(ctx, "stdio.output", func() {
			defer s.copying.Done()
			if err := (stream{from: one.from, to: one.to.writer}).copy(); !isClosed(err) {
				log.G(ctx).WithError(err).Warn("failed to copy the output of a process")
			}
			_ = one.from.Close()
			_ = one.to.writer.Close()
		})
	}
	if s.stdin != nil {
		guard.Go(ctx, "stdio.input", func() {
			// The process may end, or close its input, before it has read everything.
			_ = stream{from: s.stdin.reader, to: s.input}.copy()
			_ = s.input.Close()
			_ = s.stdin.reader.Close()
		})
	}
	return nil
}

// CloseInput ends the process's standard input once it has read what is in the FIFO.
func (s *Streams) CloseInput() error {
	if s.stdin == nil {
		return nil
	}
	if err := s.stdin.writer.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close the input: %w", err)
	}
	return nil
}

// Ended says that the process has ended: a terminal gives what it still holds, and ends.
func (s *Streams) Ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.terminal != nil {
		s.terminal.end()
	}
}

// Drain waits until the process's output is copied, at most for limit: another process may have inherited it.
func (s *Streams) Drain(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	done := make(chan struct{})
	guard.Go(ctx, "stdio.drain", func() {
		s.copying.Wait()
		close(done)
	})
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("copy the rest of the output: %w", ctx.Err())
	}
}

// Close ends all streams and the copying. It may be called more than once.
func (s *Streams) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	var files []io.Closer
	for _, file := range append(s.process, s.input) {
		if file != nil {
			files = append(files, file)
		}
	}
	if s.stdin != nil {
		files = append(files, s.stdin.writer, s.stdin.reader)
	}
	if s.terminal != nil {
		files = append(files, s.terminal.master)
	}
	for _, one := range s.out {
		if one.from != nil {
			files = append(files, one.from)
		}
		if one.to != nil {
			files = append(files, one.to.writer)
			if one.to.reader != nil {
				files = append(files, one.to.reader)
			}
		}
	}
	for _, file := range files {
		_ = file.Close() // it may have been closed at its own end
	}
}
