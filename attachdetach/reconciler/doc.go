// Package reconciler brings the attachments of volumes to nodes from what they are to what they should be.
//
// A change of either world, the end of an operation, a node that turns unhealthy and a time that comes make a pair of a
// volume and a node dirty; a dirty pair is looked at at once and nothing else is. The decision for one pair is a pure
// function (decideDetach, decideAttach); what it needs is read in one place, and one goroutine makes all decisions.
//
// Order within a pass: detaches are decided before attaches, so that a volume which moves is released first. Before a
// volume is detached it is taken off the list in its node's status, for the kubelet mounts only what is on that list.
// Lists are written for each node on its own, at the same time for different nodes, and what comes up for a node while
// its list is being written goes into the next write together.
package reconciler
