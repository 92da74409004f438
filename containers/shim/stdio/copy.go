package stdio

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const bufferSize = 32 << 10

// buffers are taken when there is something to read.
var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// stream copies from a pipe, a FIFO or a terminal.
type stream struct {
	from *os.File
	to   io.Writer
	// terminal says that the other side of from may be gone for a while: reading fails with EIO while no process has a
	// pseudoterminal open.
	terminal bool
}

// copy copies until the end of from, until it is closed or its read deadline passes, or until writing fails.
func (s stream) copy() error {
	conn, err := s.from.SyscallConn()
	if err != nil {
		return err
	}
	for {
		var result readResult
		if err := conn.Read(func(fd uintptr) bool {
			result = s.readOnce(int(fd))
			return !result.again
		}); err != nil {
			return err
		}
		if done, err := s.write(result); done {
			return err
		}
	}
}

// drain copies what can be read without waiting.
func (s stream) drain() error {
	conn, err := s.from.SyscallConn()
	if err != nil {
		return err
	}
	for {
		var result readResult
		if err := conn.Control(func(fd uintptr) { result = s.readOnce(int(fd)) }); err != nil {
			return err
		}
		if result.again {
			return nil
		}
		if done, err := s.write(result); done {
			return err
		}
	}
}

type readResult struct {
	buffer *[bufferSize]byte // nil if nothing was read
	n      int
	again  bool
	err    error
}

func (s stream) readOnce(fd int) readResult {
	buffer := buffers.Get().(*[bufferSize]byte)
	n, err := unix.Read(fd, buffer[:])
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(fd, buffer[:])
	}
	if n > 0 {
		return readResult{buffer: buffer, n: n}
	}
	buffers.Put(buffer)
	return readResult{err: err, again: errors.Is(err, unix.EAGAIN) || s.terminal && errors.Is(err, unix.EIO)}
}

// write writes what was read, and reports whether that was the end.
func (s stream) write(result readResult) (done bool, err error) {
	if result.buffer == nil {
		return true, result.err
	}
	defer buffers.Put(result.buffer)
	_, err = s.to.Write(result.buffer[:result.n])
	return err != nil, err
}

// isClosed reports whether an error only says that this side has ended the copying.
func isClosed(err error) bool {
	return err == nil || errors.Is(err, os.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.EBADF)
}
