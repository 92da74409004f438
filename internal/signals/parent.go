package signals

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// errParentEnded is why a process does not go on.
var errParentEnded = errors.New("the process that started this one has ended")

// parent is what the process was started with. It is read while the program is initialized, because the signal is a setting of the
// process's first thread, on which nothing else is certain to run.
var parent = struct {
	pid   int
	death unix.Signal
}{os.Getppid(), parentDeathSignal()}

func parentDeathSignal() unix.Signal {
	var signal int32
	if err := unix.Prctl(unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&signal)), 0, 0, 0); err != nil {
		return 0 // no kernel that Go runs on lacks it
	}
	return unix.Signal(signal)
}

// KeepParentDeathSignal makes the parent-death signal with which this process was started, if any, that of the program
// that the calling goroutine executes next: the kernel keeps the signal of the thread that executes it. The goroutine stays locked to
// its thread.
func KeepParentDeathSignal() error {
	runtime.LockOSThread()
	if parent.death == 0 {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(parent.death), 0, 0, 0); err != nil {
		return fmt.Errorf("keep the parent-death signal: %w", err)
	}
	if os.Getppid() != parent.pid { // before the signal was set
		return errParentEnded
	}
	return nil
}
