package seccompcache

import (
	"os"
	"sync"
)

// name guards os.Args[0], which is of the whole process, as this is for that reason.
var name = struct {
	mu      sync.Mutex // guards below
	users   int        // starts that use os.Args[0]
	program string     // what it was at first
}{program: os.Args[0]}

// Use calls start, and lets the processes that runc's library starts in it read a file of a [Cache]; an empty path is none. Starts may
// overlap: those of another file than the first then do without, or read a file that is not theirs, which they notice.
func Use(path string, start func() error) error {
	name.mu.Lock()
	if name.users == 0 {
		os.Args[0] = name.program
		if path != "" {
			os.Args[0] = prefix + path
		}
	}
	name.users++
	name.mu.Unlock()
	defer func() {
		name.mu.Lock()
		name.users--
		name.mu.Unlock()
	}()
	return start()
}
