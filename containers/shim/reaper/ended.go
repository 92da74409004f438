package reaper

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Ended waits until the process pid has ended, and does not reap it. pid is a child of this process that is not reaped meanwhile. It
// occupies no thread where the kernel has process descriptors (Linux 5.3).
func Ended(pid int) error {
	file, err := open(pid)
	if err != nil { // an old kernel, or too many open files: a process that runs must not count as ended
		return endedBlocking(pid)
	}
	return wait(file, pid, time.Time{})
}

// Follow returns a function that waits until the process pid, which need not be a child, has ended, at most until a time. The process
// is the one that has the ID when Follow is called; one that has ended already is no error.
func Follow(pid int) (ended func(until time.Time) error, err error) {
	file, err := open(pid)
	if errors.Is(err, unix.ESRCH) || pid <= 0 {
		return func(time.Time) error { return nil }, nil
	}
	if err != nil {
		return nil, fmt.Errorf("follow process %d: %w", pid, err)
	}
	return func(until time.Time) error { return wait(file, pid, until) }, nil
}

func open(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, err
	}
	// Only a descriptor that does not block is waited for without a thread.
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("process %d", pid)), nil
}

// wait waits for the end of a process, and closes its descriptor.
func wait(file *os.File, pid int, until time.Time) error {
	defer file.Close()
	if err := file.SetReadDeadline(until); err != nil {
		return fmt.Errorf("follow process %d: %w", pid, err)
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return fmt.Errorf("follow process %d: %w", pid, err)
	}
	var failure error
	err = conn.Read(func(fd uintptr) bool {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		if err != nil && !errors.Is(err, unix.EINTR) {
			failure = err
			return true
		}
		return ready > 0
	})
	if err := errors.Join(err, failure); err != nil {
		return fmt.Errorf("follow process %d: %w", pid, err)
	}
	return nil
}

// endedBlocking is Ended with a thread of its own.
func endedBlocking(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("follow process %d: %w", pid, err)
		}
	}
}
