package testbed

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Memory is the memory of a process, in bytes.
type Memory struct {
	// Proportional counts a page that n processes share as the n-th part of a page, so that the sum of several processes is
	// what they use together.
	Proportional int64
	// Private is the part of it that belongs to no file: heap and stacks.
	Private int64
}

// MemoryOf reads the memory of a process.
func MemoryOf(pid int) (Memory, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "smaps_rollup"))
	if err != nil {
		return Memory{}, fmt.Errorf("read memory of process %d: %w", pid, err)
	}
	var m Memory
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		var into *int64
		switch name {
		case "Pss":
			into = &m.Proportional
		case "Pss_Anon":
			into = &m.Private
		default:
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return Memory{}, fmt.Errorf("read memory of process %d: %w", pid, err)
		}
		*into = kib << 10
	}
	return m, nil
}

// Descendants returns the processes below a process, as this PID namespace numbers them.
func Descendants(pid int) ([]int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		fields := string(text[bytes.LastIndexByte(text, ')')+1:]) // the name before may have any character
		var state string
		var parent, own int
		if _, err := fmt.Sscan(fields, &state, &parent); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if own, err = strconv.Atoi(filepath.Base(filepath.Dir(file))); err != nil {
			return nil, err
		}
		children[parent] = append(children[parent], own)
	}
	var all []int
	for next := children[pid]; len(next) > 0; {
		all = append(all, next...)
		var below []int
		for _, one := range next {
			below = append(below, children[one]...)
		}
		next = below
	}
	return all, nil
}

// Allocated is what a file takes on the disk.
func Allocated(info os.FileInfo) int64 {
	const block = 512 // the unit of st_blocks
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Blocks * block
	}
	return info.Size()
}
