// Package resize expands the volumes of a CSI driver when their claims request more: it does what the sidecar external-resizer
// does. The contract is KEP-284 with the recovery of KEP-1790, as the API of Kubernetes 1.36 has them.
//
// An expansion has these steps. Each can be repeated, and each is in the API before the next one begins, so that the next
// process can continue when this one dies:
//
//  1. status.allocatedResources of the claim is the requested size, and status.allocatedResourceStatuses is
//     ControllerResizeInProgress, with the condition Resizing;
//  2. the driver is called;
//  3. the PersistentVolume's capacity is raised;
//  4. the claim's status is NodeResizePending, with the condition FileSystemResizePending, if node expansion is required,
//     which the kubelet then does; otherwise it has the new capacity, and the expansion is complete.
//
// A size with an unknown outcome, because the driver did not respond or the process died, is requested again, also if the
// claim requests another one by then: only a final result ends it. A final error is the condition ControllerResizeError; an
// infeasible size is ControllerResizeInfeasible, too. Then the claim may request less. A size that is infeasible for the node
// (NodeResizeInfeasible) goes through steps 1 to 4 again after a delay, after which the kubelet tries again.
//
// A claim that requests no more than it has costs one reconcile for each change. PersistentVolumes are read when they are
// needed, and not watched.
package resize
