// Package nodeselect selects nodes for claims that bind at once, in a cluster where a driver with a controller service, and a provisioner
// beside it, runs on each node.
//
// The scheduler selects the node of a claim whose StorageClass waits for the first consumer. A claim of a class with the mode Immediate has
// no Pod yet: the provisioners agree on one of theirs by writing the node into the claim's annotation volume.kubernetes.io/selected-node,
// which the first of them does and the others then find written. Each waits a random time before, so that they do not all write at
// once, and writes only if its node is one that the class allows and its driver has the space.
//
// A provisioner that cannot create the volume after all removes the annotation, and all try again, each after twice the time.
package nodeselect
