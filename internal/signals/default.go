package signals

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setDefault makes the kernel itself end the process at a signal. After signal.Stop Go still has a handler for it, which ends the process
// when it has run; but a program that another thread executes meanwhile ends the thread of that handler, and the signal is lost.
func setDefault(signal syscall.Signal) error {
	var action struct { // struct sigaction of the kernel: SIG_DFL, no flags, an empty mask
		handler, flags, restorer uintptr
		mask                     uint64
	}
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(signal), uintptr(unsafe.Pointer(&action)), 0, unsafe.Sizeof(action.mask), 0, 0)
	if errno != 0 {
		return fmt.Errorf("set the default action of %v: %w", signal, errno)
	}
	return nil
}
