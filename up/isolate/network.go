package isolate

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// inNetwork calls a function in the network namespace of a process.
func inNetwork(pid int, do func() error) error {
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return fmt.Errorf("open the cluster's network namespace: %w", err)
	}
	defer namespace.Close()
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with this goroutine, so that no other one runs in the namespace.
		runtime.LockOSThread()
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the cluster's network namespace: %w", err)
			return
		}
		done <- do()
	}()
	return <-done
}
