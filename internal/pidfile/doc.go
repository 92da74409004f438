// Package pidfile records a process in a file by its ID and its start time, because the kernel uses IDs again.
package pidfile
