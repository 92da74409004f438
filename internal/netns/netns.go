// Package netns calls functions in other network namespaces.
package netns

import (
	"errors"
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
	return OnThread(file, func() error {
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return do()
	})
}

// OnThread calls a function on a thread that ends with it, so that the function may change the thread's network namespace: no other goroutine runs
// there. object is what a panic of the function names. The function must not start goroutines that need the namespace.
func OnThread(object string, do func() error) error {
	done := make(chan error, 1)
	go func() { run(func() error { return contain.Do("netns.OnThread", object, do) }, done) }()
	return <-done
}

// run calls the function on a thread that ends with this goroutine, which never unlocks it.
func run(do func() error, done chan<- error) {
	runtime.LockOSThread()
	err := errors.New("the function ended its goroutine")
	defer func() { done <- err }()
	// The main thread cannot end, and its namespace is the one that /proc shows as the process's.
	if unix.Gettid() == unix.Getpid() {
		defer runtime.UnlockOSThread()
		inner := make(chan error, 1)
		go func() { run(func() error { return contain.Do("netns.run", "", do) }, inner) }() // on another thread, while this one is locked
		err = <-inner
		return
	}
	err = do()
}
