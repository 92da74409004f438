package testbed

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
