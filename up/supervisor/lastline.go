package supervisor

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// lastLine returns the line of a log that says why the program exited.
func lastLine(path string) string {
	const tail = 64 << 10 // a crash of a Go program prints its cause first, and then the stacks of many goroutines
	file, err := os.Open(path)
	if err != nil {
		return "no log: " + err.Error()
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > tail {
		if _, err := file.Seek(-tail, io.SeekEnd); err != nil {
			return "see " + path
		}
	}
	data, err := io.ReadAll(file)
	if err != nil {
		return "see " + path
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	last := lines[len(lines)-1]
	for _, line := range slices.Backward(lines) {
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			last = line
			break
		}
		if !isStackLine(line) {
			break // earlier crashes belong to earlier runs
		}
	}
	return fmt.Sprintf("%s (see %s)", last, path)
}

// isStackLine reports whether the line may be one of the stacks that follow the cause of a Go program's crash.
func isStackLine(line string) bool {
	return line == "" || strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "goroutine ") ||
		strings.HasPrefix(line, "created by ") || strings.HasPrefix(line, "[signal ") || strings.HasSuffix(line, ")")
}
