// Package filelock locks a file or a directory for one process. The kernel releases the lock when the process ends.
package filelock

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// HeldError says that another process has the lock.
type HeldError struct {
	Path string
	// PID is that of the process, 0 if unknown: the process may be in another PID namespace.
	PID int
}

func (e *HeldError) Error() string { return fmt.Sprintf("%s is locked by %s", e.Path, e.Holder()) }

// Holder names the process that has the lock.
func (e *HeldError) Holder() string {
	if e.PID == 0 {
		return "another process"
	}
	return "process " + strconv.Itoa(e.PID)
}

// Acquire opens the file, creates it if it is missing, and locks it until the caller closes it. It does not wait: the error
// is a *HeldError if another process has the lock. The holder may remove the file before it closes it.
func Acquire(path string) (*os.File, error) {
	for {
		file, err := open(path)
		if err == nil {
			file, err = lockOrClose(file)
		}
		if err != nil || isAt(file, path) {
			return file, err
		}
		if err := file.Close(); err != nil { // its holder has removed it meanwhile
			return nil, fmt.Errorf("close lock file: %w", err)
		}
	}
}

// isAt reports whether the file is still the one at the path.
func isAt(file *os.File, path string) bool {
	own, err := file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(own, there)
}

// open opens the file of a lock, and creates it if it is missing.
func open(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	return file, nil
}

// AcquireDir is Acquire for a directory, which must exist.
func AcquireDir(path string) (*os.File, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	return lockOrClose(dir)
}

func lockOrClose(file *os.File) (*os.File, error) {
	if err := TryLock(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// TryLock locks an open file or directory, without waiting: an error is a *HeldError if another process has the lock.
func TryLock(file *os.File) error {
	err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return &HeldError{Path: file.Name(), PID: holder(file)}
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	return nil
}

// holder returns the PID of the lock's holder from /proc/locks, so that nothing needs to be written into the file; 0 if it
// is not listed.
func holder(file *os.File) int {
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return 0
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return 0
	}
	defer locks.Close()
	id := fmt.Sprintf("%02x:%02x:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev), stat.Ino)
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		// "3: FLOCK  ADVISORY  WRITE 24803 fe:00:868564 0 EOF"; waiting processes have "->".
		fields := strings.Fields(lines.Text())
		if len(fields) >= 6 && fields[1] == "FLOCK" && fields[5] == id {
			pid, _ := strconv.Atoi(fields[4]) // 0 if it is not a number
			return max(pid, 0)
		}
	}
	return 0
}
