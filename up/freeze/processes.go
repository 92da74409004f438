package freeze

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/internal/procstat"
)

// process is what /proc says of a process.
type process struct {
	pid, parent int
	// stopped says that it does not run: a signal has stopped it, or it is a zombie. terminal says that it has a controlling terminal.
	stopped, terminal bool
}

// components returns the supervisor, unless it is only the outer process of namespaces, and all processes below it, parents before children,
// but for those of Pods.
func (t Target) components() ([]process, error) {
	all, err := readProcesses("/proc")
	if err != nil {
		return nil, err
	}
	children := map[int][]process{}
	var found []process
	for _, one := range all {
		children[one.parent] = append(children[one.parent], one)
		if one.pid == t.Supervisor && !t.Isolated {
			found = append(found, one)
		}
	}
	next := []int{t.Supervisor}
	for len(next) > 0 {
		parent := next[0]
		next = next[1:]
		for _, child := range children[parent] {
			next = append(next, child.pid)
			if !t.isOfPod("/proc", child.pid) {
				found = append(found, child)
			}
		}
	}
	return found, nil
}

// isOfPod reports whether the process is in a Pod's cgroup.
func (t Target) isOfPod(proc string, pid int) bool {
	data, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return false // it has ended
	}
	for line := range strings.Lines(string(data)) {
		// "4:memory:/berth-0123abcd/pod…": the path is the third field.
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) == 3 && strings.HasPrefix(fields[2]+"/", t.Cgroup+"/") {
			return true
		}
	}
	return false
}

func readProcesses(proc string) ([]process, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	var all []process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		data, err := os.ReadFile(filepath.Join(proc, entry.Name(), "stat"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		one, err := parseStat(pid, string(data))
		if err != nil {
			continue // it has ended meanwhile
		}
		all = append(all, one)
	}
	return all, nil
}

// parseStat parses a line of /proc/PID/stat.
func parseStat(pid int, text string) (process, error) {
	fields := procstat.Fields([]byte(text))
	if len(fields) <= procstat.Terminal {
		return process{}, fmt.Errorf("process %d: unknown format of stat: %q", pid, text)
	}
	parent, err := strconv.Atoi(fields[procstat.Parent])
	if err != nil {
		return process{}, fmt.Errorf("process %d: unknown format of stat: %q", pid, text)
	}
	return process{pid: pid, parent: parent, stopped: strings.Contains("TtZX", fields[procstat.State]), terminal: fields[procstat.Terminal] != "0"}, nil
}
