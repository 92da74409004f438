// Package resize makes the volumes of a CSI driver larger when their claims ask for more: it does what the sidecar
// external-resizer does beside a driver. The contract is KEP-284 with the recovery of KEP-1790, as the API of Kubernetes
// 1.36 has them.
//
// One expansion goes through these steps, each of which can be repeated, and each of which is in the API before the next
// one begins, so that a process that dies leaves the next one what it needs:
//
//  1. status.allocatedResources of the claim says the size that is asked for, and status.allocatedResourceStatuses says
//     ControllerResizeInProgress, with the condition Resizing;
//  2. the driver is called;
//  3. the PersistentVolume's capacity is raised;
//  4. the claim's status says NodeResizePending, with the condition FileSystemResizePending, where a node has to do its
//     part, which the node agent then does; otherwise it has its new capacity, and nothing is left to do.
//
// A size whose outcome is not known, because the driver did not answer or this process died, is asked for again, also if
// the claim asks for another one by now: only a final answer sets it free. A final answer is kept as the condition
// ControllerResizeError, and one that says that the size can never be had as ControllerResizeInfeasible too. Then the
// claim may ask for less.
//
// A claim that does not ask for more than it has costs one look at it for each change. Volumes are read when they are
// needed, and not watched.
package resize
