// Package task is the Task API of containerd's shims (version 3) for the containers of one Pod.
//
// Each process that was started has a goroutine that waits for its end. For a container the exit of its first process is the last that
// is reported: the others are ended and reported before. A task is listed by Pids until it is deleted, also when its process has
// ended: a containerd that starts takes a task without processes for the rest of a failed start and deletes it with its exit code.
package task
