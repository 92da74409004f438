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

// Release returns the free part of the heap, and the unmodified pages of the program's file and libraries, to the
// machine. It costs two garbage collections now (objects in pools survive the first, and each collection halves stacks
// that are too large) and a page fault for each part of the program that runs again; the page cache serves those
// without reading a disk. An error concerns only the program's pages and has no effect but a larger process.
func Release() error {
	runtime.GC()
	debug.FreeOSMemory() // collects again
	return releaseProgram()
}

// releaseProgram releases the unmodified pages of the program's file and libraries.
func releaseProgram() error {
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return fmt.Errorf("release the program's pages: %w", err)
	}
	for _, m := range cleanMappings(maps) {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.size, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("release the program's pages: %w", errno)
		}
	}
	return nil
}

// mapping is a range of addresses.
type mapping struct{ start, size uintptr }

// cleanMappings returns, from the text of a process's smaps file, the private read-only mappings of a program or
// library file without modified pages (the loader writes to some mappings before it protects them). Shared mappings and
// those of deleted files are left out.
func cleanMappings(smaps []byte) []mapping {
	var (
		mappings []mapping
		current  mapping // the mapping that the lines describe; size 0 if it is not clean
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

// parseMapping parses START-END; the size is 0 if the text is not of that form.
func parseMapping(text []byte) mapping {
	from, to, _ := bytes.Cut(text, []byte("-"))
	start, err := strconv.ParseUint(string(from), 16, 64)
	end, err2 := strconv.ParseUint(string(to), 16, 64)
	if err != nil || err2 != nil || start >= end {
		return mapping{}
	}
	return mapping{uintptr(start), uintptr(end - start)}
}
