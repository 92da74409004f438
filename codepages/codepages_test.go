package codepages

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

func TestReleaseMakesTheProcessSmaller(t *testing.T) {
	if _, err := os.ReadFile("/proc/self/exe"); err != nil { // all of it is in the kernel's cache now
		t.Fatal(err)
	}
	before := fileMemory(t)
	if err := Release(); err != nil {
		t.Fatal(err)
	}
	if after := fileMemory(t); after >= before {
		t.Errorf("%d KiB of files in memory, %d before", after, before)
	}
	if err := Release(); err != nil {
		t.Errorf("the second time, when the code that runs is mapped again: %v", err)
	}
}

func TestNotifyCollections(t *testing.T) {
	collected := make(chan struct{}, 1)
	NotifyCollections(t.Context(), collected)
	for range 3 {
		for notified := false; !notified; { // a collection may end before the last one is known to have ended
			runtime.GC()
			select {
			case <-collected:
				notified = true
			default:
			}
		}
	}
}

// fileMemory is the memory of this process that belongs to files, in KiB.
func fileMemory(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if size, found := strings.CutPrefix(line, "RssFile:"); found {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(size), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			return kib
		}
	}
	t.Fatal("the kernel does not say RssFile")
	return 0
}

func TestParseSelectsReadOnlyMappingsOfTheProgram(t *testing.T) {
	const program = "/usr/lib/berth/a program"
	for line, want := range map[string]bool{
		"00400000-00452000 r-xp 00000000 08:02 173521      /usr/lib/berth/a program":           true,
		"00651000-00652000 r--p 00051000 08:02 173521      /usr/lib/berth/a program":           true,
		"00652000-00655000 rw-p 00052000 08:02 173521      /usr/lib/berth/a program":           false,
		"35b1800000-35b1820000 r-xp 00000000 08:02 135522  /usr/lib64/ld-2.15.so":              false,
		"7fff6d5e0000-7fff6d601000 rw-p 00000000 00:00 0   [stack]":                            false,
		"f2c6ff8c000-7f2c7078c000 rw-p 00000000 00:00 0":                                       false,
		"00400000-00452000 r-xp 00000000 08:02 173521      /usr/lib/berth/a program (deleted)": false,
	} {
		start, end, found := parse(line, program)
		if found != want || (end > start) != want {
			t.Errorf("%s: %x to %x, %v; want %v", line, start, end, found, want)
		}
	}
}
