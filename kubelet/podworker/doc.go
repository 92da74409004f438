// Package podworker brings each Pod of the node from what it is to what it should be.
//
// Each Pod has one worker, one goroutine that owns all that is known of the Pod. It sleeps on its own channel and on
// one timer. When something wakes it, it takes in what arrived, reads the Pod's state in the runtime if that may
// have changed, decides with a pure function what is to be done, and begins it. What takes time (a sandbox, an
// image, volumes, a container, a stop) runs beside the worker, at the same time as the rest of its kind, and comes
// back as another thing that arrived: the worker itself never waits for anything but an answer of the runtime.
//
//	taking in ──> reading ──> deciding ──> beginning ──> reporting ──> asleep
//
// A Pod's life has three states and only goes forward: syncing, terminating, terminated. Nothing is kept on disk:
// after a crash the worker finds everything in the API, the runtime and the mount table, and goes on from there.
package podworker
