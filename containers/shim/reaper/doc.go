// Package reaper follows the ends of the shim's children.
//
// The children of a shim have different owners: runc's library waits for the processes with which it enters namespaces, os/exec for
// hooks, the shim for the processes of its containers. A wait for "any child" takes exits from others. So there is none: [Ended]
// waits for one process and leaves it to its owner, and [Orphans] reaps only what the kernel gives to the shim because its parent
// has died. The kernel gives such processes to the main thread, which starts none itself, and wait(2) can be limited to the children
// of the calling thread.
package reaper
