package memory

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"
)

// Release gives back the heap that is free and the pages of the program's file and its libraries. It costs two garbage
// collections now, because what lies in pools outlives the first and each halves the stacks that are too large, and a
// page fault for each piece of the program that is used again; nothing is read from a disk that is in the page cache.
// Its error concerns the files' pages alone, and leaves nothing behind but a larger process.
func Release() error {
	maps, err := os.ReadFile("/proc/self/smaps")
	mappings := cleanMappings(maps)
	maps = nil // garbage for the collections that follow
	runtime.GC()
	debug.FreeOSMemory() // collects again
	if err != nil {
		return fmt.Errorf("give back the program's pages: %w", err)
	}
	for _, m := range mappings {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.size, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("give back the program's pages: %w", errno)
		}
	}
	return nil
}

// mapping is a range of addresses.
type mapping struct{ start, size uintptr }

// cleanMappings finds, in the text of a process's smaps file, the ranges that hold a program's or library's file as it is:
// they are the process's own, cannot be written to, and never were (the loader writes to some before it closes them). A
// file that was deleted, or is mapped in common with others, is left alone.
func cleanMappings(smaps []byte) []mapping {
	var (
		mappings []mapping
		current  mapping // the range that the lines are about; no size if it is not of interest
	)
	for line := range bytes.Lines(smaps) {
		fields := bytes.Fields(line)
		switch {
		case len(fields) >= 5 && bytes.IndexByte(fields[0], '-') > 0: // ADDRESSES MODE OFFSET DEVICE INODE [PATH]
			current = mapping{}
			if mode := string(fields[1]); len(fields) == 6 && fields[5][0] == '/' && (mode == "r-xp" || mode == "r--p") {
				current = parseMapping(fields[0])
			}
		case current.size > 0 && len(fields) == 3 && string(fields[0]) == "Anonymous:" && string(fields[1]) == "0":
			mappings = append(mappings, current)
		}
	}
	return mappings
}

// parseMapping reads addresses as START-END; what is none has no size.
func parseMapping(text []byte) mapping {
	from, to, _ := bytes.Cut(text, []byte("-"))
	start, err := strconv.ParseUint(string(from), 16, 64)
	end, err2 := strconv.ParseUint(string(to), 16, 64)
	if err != nil || err2 != nil || start >= end {
		return mapping{}
	}
	return mapping{uintptr(start), uintptr(end - start)}
}
