// Package netns calls functions in other network namespaces.
package netns

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/contain"
)

// Do calls a function in the network namespace of the file, such as /proc/PID/ns/net. Sockets that the function creates
// belong to that namespace. The function must not start goroutines that need it.
func Do(file string, do func() error) error {
	namespace, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer namespace.Close()
	done := make(chan error, 1)
	go func() { run(int(namespace.Fd()), func() error { return contain.Do("netns.Do", file, do) }, done) }()
	return <-done
}

// run calls the function on a thread that ends with this goroutine, which never unlocks it, so that no other goroutine runs in
// the namespace.
func run(namespace int, do func() error, done chan<- error) {
	runtime.LockOSThread()
	// The main thread cannot end, and its namespace is the one that /proc shows as the process's.
	if unix.Gettid() == unix.Getpid() {
		defer runtime.UnlockOSThread()
		inner := make(chan error, 1)
		go func() { run(namespace, func() error { return contain.Do("netns.run", "", do) }, inner) }() // on another thread, while this one is locked
		done <- <-inner
		return
	}
	if err := unix.Setns(namespace, unix.CLONE_NEWNET); err != nil {
		done <- fmt.Errorf("enter network namespace: %w", err)
		return
	}
	done <- do()
}
