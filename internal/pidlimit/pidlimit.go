package pidlimit

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Read returns how many processes and threads the kernel allows, which is the smaller of two limits, and how many exist. proc is where
// procfs is mounted. A number that it does not have is zero.
func Read(proc string) (limit, existing int64) {
	for _, name := range []string{"pid_max", "threads-max"} {
		if n := number(text(proc, "sys/kernel", name)); n > 0 && (limit == 0 || n < limit) {
			limit = n
		}
	}
	// The fourth field of loadavg is running/existing threads.
	if fields := strings.Fields(text(proc, "loadavg")); len(fields) > 3 {
		_, all, _ := strings.Cut(fields[3], "/")
		existing = number(all)
	}
	return limit, existing
}

func text(path ...string) string {
	data, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// number returns zero for what is none.
func number(text string) int64 {
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0
	}
	return int64(n)
}
