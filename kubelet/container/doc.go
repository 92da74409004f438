// Package container has the state of one Pod in the container runtime.
//
// Package pleg builds a [PodStatus] from responses of the CRI with [FromCRI]; the pod workers, the planner and the status read
// it. Nothing in this package does I/O. A PodStatus is not changed after it was built, so several goroutines may read it.
package container
