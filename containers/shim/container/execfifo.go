package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/containers/shim/guard"
)

// execFIFO is the FIFO in runc's state of a container that is created and not started: its first process opens it for writing, which
// waits for a reader, writes a byte, and becomes the user's program.
const execFIFO = "exec.fifo"

// startInit lets the first process of a created container go on. It does without the library's own function, which keeps a thread
// forever if the process dies before. ended is closed when the process has ended.
func startInit(stateDir string, ended <-chan struct{}) error {
	path := filepath.Join(stateDir, execFIFO)
	fifo, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("start the container: %w", err)
	}
	defer fifo.Close()
	done := make(chan struct{})
	defer close(done)
	guard.Go(context.Background(), "container.startInit", func() { // it only waits for one of both
		select {
		case <-ended:
			_ = fifo.SetReadDeadline(time.Unix(1, 0))
		case <-done:
		}
	})
	n, err := readFIFO(fifo)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// The process may have written before it ended.
		if n, err = readNow(fifo); errors.Is(err, unix.EAGAIN) {
			n, err = 0, nil
		}
	}
	if err != nil {
		return fmt.Errorf("start the container: %w", err)
	}
	if n == 0 {
		return fmt.Errorf("start the container: its process has ended: %w", libcontainer.ErrNotRunning)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("start the container: %w", err)
	}
	return nil
}

// readFIFO waits for what is written to a FIFO. Reading at once would return the end of the file while there is no writer yet.
func readFIFO(fifo *os.File) (n int, err error) {
	conn, err := fifo.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failure error
	err = conn.Read(func(fd uintptr) bool {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		if err != nil || ready == 0 {
			return false
		}
		n, failure = unix.Read(int(fd), make([]byte, 16))
		return !errors.Is(failure, unix.EAGAIN) && !errors.Is(failure, unix.EINTR)
	})
	return n, errors.Join(err, failure)
}

func readNow(fifo *os.File) (n int, err error) {
	conn, err := fifo.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failure error
	err = conn.Control(func(fd uintptr) { n, failure = unix.Read(int(fd), make([]byte, 16)) })
	return n, errors.Join(err, failure)
}
