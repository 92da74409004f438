// Package codepages releases the memory of the program's own code that only its start needed.
//
// The kernel maps a program's pages when they are first used, some neighbours with each, and never unmaps them by itself: after a
// start that runs through the code of all of Kubernetes nearly the whole file counts as memory of the process. What is released
// stays in the kernel's cache of files, as the first to go when memory is short, and is mapped again at its next use.
//
// It is a module of its own, without requirements, for the programs whose modules pin what other systems require: the control
// plane, DNS and containerd. The node's own process releases its heap as well, by kubelet/memory.
package codepages

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

const (
	mapsFile       = "/proc/self/maps"
	executableLink = "/proc/self/exe"
)

// Release unmaps all pages of the program's file that cannot have been changed. It is safe at any time.
func Release() (err error) {
	program, err := os.Readlink(executableLink)
	if err != nil {
		return fmt.Errorf("release pages of code: %w", err)
	}
	file, err := os.Open(mapsFile)
	if err != nil {
		return fmt.Errorf("release pages of code: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		start, end, found := parse(lines.Text(), program)
		if !found {
			continue
		}
		if _, _, errno := syscall.Syscall(syscall.SYS_MADVISE, start, end-start, syscall.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("release pages of code at %x: %w", start, errno)
		}
	}
	return lines.Err()
}

// parse returns the range of a line of /proc/self/maps if it maps the program without write permission.
func parse(line, program string) (start, end uintptr, found bool) {
	// address permissions offset device inode path
	fields := strings.SplitN(line, " ", 6)
	if len(fields) != 6 || strings.TrimSpace(fields[5]) != program || strings.Contains(fields[1], "w") {
		return 0, 0, false
	}
	from, to, _ := strings.Cut(fields[0], "-")
	first, err := strconv.ParseUint(from, 16, 64)
	if err != nil {
		return 0, 0, false
	}
	last, err := strconv.ParseUint(to, 16, 64)
	if err != nil || last <= first {
		return 0, 0, false
	}
	return uintptr(first), uintptr(last), true
}
