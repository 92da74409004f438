package mounts

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// SwapsFile is the file in which the kernel lists its swap devices.
const SwapsFile = "/proc/swaps"

// TmpfsMaySwap reports whether the content of a tmpfs may be written to a disk: the file swaps, with the format of
// SwapsFile, lists swap devices, and the kernel cannot exclude a tmpfs from swapping.
func TmpfsMaySwap(swaps string) (bool, error) {
	list, err := os.ReadFile(swaps)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // a kernel without swap
	}
	if err != nil {
		return false, fmt.Errorf("check whether this machine has swap: %w", err)
	}
	if strings.Count(strings.TrimSpace(string(list)), "\n") == 0 { // the first line is the table's head
		return false, nil
	}
	can, err := supportsNoswap()
	return !can && err == nil, err
}

// supportsNoswap checks whether the kernel can exclude a tmpfs from swapping. It mounts nothing.
func supportsNoswap() (bool, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.ENOSYS) {
		return false, nil // the kernel is older than both
	}
	if err != nil {
		return false, fmt.Errorf("check whether a tmpfs can be excluded from swapping: %w", err)
	}
	defer unix.Close(fs)
	err = unix.FsconfigSetFlag(fs, "noswap")
	if errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("check whether a tmpfs can be excluded from swapping: %w", err)
	}
	return true, nil
}
