package containerd

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// CountPods counts the Pods of the containerd that has a socket, by the runtime that runs them. Each has one shim.
func CountPods(socket string) (map[string]int, error) {
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	count := make(map[string]int)
	for _, file := range processes {
		command, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended meanwhile
		}
		argv := strings.Split(string(command), "\x00")
		program := filepath.Base(argv[0])
		for _, name := range Runtimes() {
			if program == ShimProgram(name) && slices.Contains(argv, socket) && !isShimCall(argv) {
				count[name]++
			}
		}
	}
	return count, nil
}
