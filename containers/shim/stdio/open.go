package stdio

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// sink is where the output of a process goes.
type sink struct {
	writer *os.File
	reader *os.File // of a FIFO: keeps it and what it holds; nil for a file
}

// openSink opens an output that containerd names: the path of a FIFO, or file:// and the path of a file, which is created.
func openSink(name string) (*sink, error) {
	location, err := url.Parse(name)
	if err != nil {
		return nil, fmt.Errorf("open output %q: %w", name, err)
	}
	switch location.Scheme {
	case "", "fifo":
		return openFIFO(location.Path)
	case "file":
		return openLogFile(location.Path)
	default:
		return nil, fmt.Errorf("open output %q: this shim writes to FIFOs and files only: %w", name, errdefs.ErrNotImplemented)
	}
}

func openFIFO(path string) (*sink, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("open output: %w", err)
	}
	if info.Mode()&os.ModeNamedPipe == 0 {
		return openLogFile(path)
	}
	// With a reader of its own the writing end opens at once, whether containerd reads or not.
	reader, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open output: %w", err)
	}
	writer, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open output: %w", err), reader.Close())
	}
	return &sink{writer: writer, reader: reader}, nil
}

func openLogFile(path string) (*sink, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("open output: %w", err)
	}
	writer, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open output: %w", err)
	}
	return &sink{writer: writer}, nil
}

// source is the FIFO from which the input of a process comes. The shim's own writing end keeps it open until containerd closes the
// input of the process.
type source struct{ reader, writer *os.File }

func openSource(path string) (*source, error) {
	reader, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open input: %w", err)
	}
	writer, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open input: %w", err), reader.Close())
	}
	return &source{reader: reader, writer: writer}, nil
}

// pipe makes a pipe whose end for the shim does not block a thread, and whose other end does block its process as usual.
func pipe(forProcessWrites bool, uid, gid int) (shim, process *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("create a pipe: %w", err)
	}
	ours, theirs := fds[0], fds[1]
	if !forProcessWrites {
		ours, theirs = theirs, ours
	}
	if err := errors.Join(unix.SetNonblock(ours, true), unix.Fchown(fds[0], uid, gid)); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("prepare a pipe: %w", err), unix.Close(ours), unix.Close(theirs))
	}
	return os.NewFile(uintptr(ours), "pipe"), os.NewFile(uintptr(theirs), "pipe"), nil
}
