package pidfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/statefile"
)

// Proc is where the processes of this PID namespace are seen.
const Proc = "/proc"

// maxSize bounds what is read of a file, in bytes: it has two numbers.
const maxSize = 4096

// Write records the process in the file. A process that has ended is not recorded.
func Write(path string, pid int) error {
	start, _, err := stat(Proc, pid)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return atomicfile.Write(path, fmt.Appendf(nil, "%d %s\n", pid, start), 0o600)
}

// Running returns the process of the file; 0 if it does not run, or the file does not exist or has other content. The
// directory proc shows the processes of the PID namespace in which the file was written.
func Running(proc, path string) int {
	data, err := statefile.Read(path, maxSize)
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data))
	if len(fields) != 2 {
		return 0
	}
	pid, err := strconv.Atoi(fields[0])
	if err != nil || pid <= 0 {
		return 0
	}
	if start, ended, err := stat(proc, pid); err != nil || start != fields[1] || ended {
		return 0
	}
	return pid
}

// stat returns when the process started, in clock ticks since boot, and whether it has ended (fields 22, 3 and 20 of
// /proc/PID/stat). As long as a thread of a killed process ends, its ports are in use, although its first thread is a zombie.
func stat(proc string, pid int) (start string, ended bool, err error) {
	data, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", false, fmt.Errorf("read process %d: %w", pid, err)
	}
	fields := procstat.Fields(data)
	if len(fields) <= procstat.Start {
		return "", false, fmt.Errorf("read process %d: short stat", pid)
	}
	return fields[procstat.Start], fields[procstat.State] == "Z" && fields[procstat.Threads] == "1", nil
}
