package isolate

import (
	"fmt"

	"github.com/berth-dev/berth/internal/netns"
)

// inNetwork calls a function in the network namespace of a process.
func inNetwork(pid int, do func() error) error {
	return netns.Do(fmt.Sprintf("/proc/%d/ns/net", pid), do)
}
