package csidriver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// maxHolders is how many processes an error names.
const maxHolders = 5

// holders names processes, one of each mount namespace, that have the device's filesystem mounted. It is for an error: processes that this one
// may not see, or that end meanwhile, are missing.
func (l *loop) holders() []string {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	seen := make(map[string]bool)
	var found []string
	for _, process := range processes {
		namespace, err := os.Readlink(filepath.Join(process, "ns", "mnt"))
		if err != nil || seen[namespace] {
			continue
		}
		mounted, err := l.isMountedIn(process)
		if err != nil {
			continue // the namespace is read with its next process
		}
		seen[namespace] = true
		if mounted && len(found) < maxHolders {
			name, _ := os.ReadFile(filepath.Join(process, "comm")) // it may have ended
			found = append(found, fmt.Sprintf("%s (%s)", filepath.Base(process), strings.TrimSpace(string(name))))
		}
	}
	return found
}

// isMountedIn reports whether a process, a directory of /proc, has the device's filesystem mounted.
func (l *loop) isMountedIn(process string) (bool, error) {
	file, err := os.Open(filepath.Join(process, "mountinfo"))
	if err != nil {
		return false, err
	}
	defer file.Close()
	infos, err := mountinfo.GetMountsFromReader(file, func(info *mountinfo.Info) (skip, stop bool) { return !l.isFilesystemMount(info), false })
	return len(infos) > 0, err
}
