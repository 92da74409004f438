package supervisor

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// tail is how much is read of a log. A crash of a Go program prints its cause first, and then the stacks of many goroutines.
const tail = 64 << 10

// Tail returns the end of a log, of what begins at from. One that was rotated since begins at 0.
func Tail(log *os.File, from int64) ([]byte, error) {
	info, err := log.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() < from {
		from = 0
	}
	return io.ReadAll(io.NewSectionReader(log, max(from, info.Size()-tail), tail))
}

// lastLine returns the line of a log that says why the program exited.
func lastLine(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return "no log: " + err.Error()
	}
	defer file.Close()
	data, err := Tail(file, 0)
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
