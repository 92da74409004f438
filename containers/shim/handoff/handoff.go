package handoff

/*
#cgo CFLAGS: -Wall
int handoff_status_fd(void);
void handoff_forget(void);
*/
import "C"

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Forked reports whether a parent waits for [Release].
func Forked() bool { return C.handoff_status_fd() >= 0 }

// Release lets the parent exit with the status. Call it once, on the main thread: the signal that would have come with the parent's
// death belongs to that thread.
func Release(status byte) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("outlive the process that containerd started: %w", err)
	}
	fd := int(C.handoff_status_fd())
	C.handoff_forget()
	if _, err := unix.Write(fd, []byte{status}); err != nil {
		return fmt.Errorf("report the start to the process that containerd started: %w", err)
	}
	return unix.Close(fd)
}
