package main

import "golang.org/x/sys/unix"

// waitDead blocks until the child is dead and leaves it to be collected.
func waitDead(pid int) error {
	return unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
}
