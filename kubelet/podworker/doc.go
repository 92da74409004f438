// Package podworker runs the Pods of the node: it brings each Pod from its actual state to the desired one.
//
// Each Pod has one worker: one goroutine that owns all state of the Pod and sleeps on one channel and one timer. When it
// wakes up, it handles what was posted to it, reads the Pod's state in the runtime if that may have changed, computes
// with a pure function what the Pod needs, and starts those operations. Operations that take time (a sandbox, an image,
// volumes, a container, a stop) run beside the worker and beside each other, and post their results to it. The worker
// itself waits only for reads of the runtime.
//
//	handle posts ──> read ──> decide ──> start operations ──> report status ──> sleep
//
// A Pod's life has three states and only goes forward: syncing, terminating, terminated. Nothing is stored on disk:
// after a crash the worker finds everything in the API, the runtime and the mount table and continues.
//
// Other components wake workers with [Signals].
package podworker
