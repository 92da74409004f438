package containerd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/procstat"
)

// children are the processes that a process has started, each held by a descriptor, so that its ID is not reused.
type children []int

// childrenOf returns those of a process. The caller closes them.
func childrenOf(pid int) (children, error) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var found children
	for _, dir := range processes {
		child, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || parentOf(child) != pid {
			continue
		}
		fd, err := unix.PidfdOpen(child, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			found.close()
			return nil, fmt.Errorf("open process %d, a child of process %d: %w", child, pid, err)
		}
		if parentOf(child) != pid { // the ID was reused before it was opened
			_ = unix.Close(fd)
			continue
		}
		found = append(found, fd)
	}
	return found, nil
}

// parentOf returns the ID of a process's parent, 0 if the process has ended.
func parentOf(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := procstat.Fields(stat)
	if len(fields) <= procstat.Parent {
		return 0
	}
	parent, _ := strconv.Atoi(fields[procstat.Parent]) // 0 if it is no number
	return parent
}

// kill kills them.
func (c children) kill() error {
	var errs []error
	for _, fd := range c {
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (c children) close() {
	for _, fd := range c {
		_ = unix.Close(fd) // it has no data
	}
}
