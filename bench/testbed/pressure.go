package testbed

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// MemoryAvailable returns the machine's memory without what is in use and cannot be reclaimed at once, in bytes, as kubelets calculate
// memory.available: from the root cgroup with version 1, and from /proc/meminfo with version 2, whose root cgroup has no such files.
func MemoryAvailable() (int64, error) {
	info, err := table("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	const root = "/sys/fs/cgroup/memory"
	text, err := os.ReadFile(filepath.Join(root, "memory.usage_in_bytes"))
	if errors.Is(err, fs.ErrNotExist) {
		return (info["MemFree"] + info["Inactive(file)"] + info["SReclaimable"]) << 10, nil
	}
	if err != nil {
		return 0, err
	}
	used, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, err
	}
	stat, err := table(filepath.Join(root, "memory.stat"))
	if err != nil {
		return 0, err
	}
	return info["MemTotal"]<<10 - (used - stat["total_inactive_file"]), nil
}

// table reads a file whose lines are a name and a number.
func table(path string) (map[string]int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	values := map[string]int64{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		if values[strings.TrimSuffix(fields[0], ":")], err = strconv.ParseInt(fields[1], 10, 64); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
	}
	return values, lines.Err()
}
