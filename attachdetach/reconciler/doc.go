// Package reconciler brings the attachments of volumes to nodes from what they are to what they should be.
//
// A change of the desired or actual state, the end of an operation, a node that becomes unhealthy and an elapsed deadline
// make a pair of a volume and a node dirty; the reconciler reconciles dirty pairs at once, and only those. The decision for
// one pair is a pure function (decideDetach, decideAttach) of facts that are read in one place; one goroutine makes all
// decisions.
//
// Within a pass, detaches come before attaches, so that a volume which moves is released first. Before a volume is
// detached, the reconciler removes it from the list in its node's status, because the kubelet mounts only what that list
// has. The statuses of different nodes are written at the same time; all changes of a node's list that come while it is
// being written share the next write.
package reconciler
