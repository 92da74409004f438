package codepages

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReleaseMakesTheProcessSmaller(t *testing.T) {
	program, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NotEmpty(t, program) // all of it is in the kernel's cache now
	before := fileMemory(t)
	require.NoError(t, Release())
	require.Less(t, fileMemory(t), before)
	require.NoError(t, Release(), "the code that it runs is mapped again")
}

// fileMemory is the memory of this process that belongs to files, in KiB.
func fileMemory(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	for line := range strings.Lines(string(status)) {
		if size, found := strings.CutPrefix(line, "RssFile:"); found {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(size), " kB"))
			require.NoError(t, err)
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
		require.Equal(t, want, found, line)
		require.Equal(t, want, end > start, line)
	}
}
