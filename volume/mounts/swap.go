package mounts

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// SwapsFile is where the kernel lists what it swaps memory to.
const SwapsFile = "/proc/swaps"

// TmpfsMaySwap reports whether what is in a tmpfs may be written to a disk: there is swap, as the file of the form of
// SwapsFile says, and the kernel cannot keep a tmpfs out of it.
func TmpfsMaySwap(swaps string) (bool, error) {
	list, err := os.ReadFile(swaps)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // a kernel without swap
	}
	if err != nil {
		return false, fmt.Errorf("see whether this machine has swap: %w", err)
	}
	if strings.Count(strings.TrimSpace(string(list)), "\n") == 0 { // the first line is the table's head
		return false, nil
	}
	can, err := supportsNoswap()
	return !can && err == nil, err
}

// supportsNoswap asks the kernel whether a tmpfs can be kept out of swap. It mounts nothing.
func supportsNoswap() (bool, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.ENOSYS) {
		return false, nil // older than both
	}
	if err != nil {
		return false, fmt.Errorf("see whether a tmpfs can be kept out of swap: %w", err)
	}
	defer unix.Close(fs)
	err = unix.FsconfigSetFlag(fs, "noswap")
	if errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("see whether a tmpfs can be kept out of swap: %w", err)
	}
	return true, nil
}
