// Package volumemanager mounts the volumes of this node's Pods, keeps their content up to date, and unmounts them.
//
// There is no table of desired and actual state and no loop that compares them. [Manager.Mount] is called by a Pod's
// worker and mounts each of the Pod's volumes on its own, all at the same time; a volume that fails is retried after a
// growing backoff, or at once when an object changes that it may have waited for. [Manager.Unmount] unmounts what it
// finds on disk, so it does the same for a Pod that ends and for one that an earlier process left. The state from before
// a crash is not read back: setting up a volume that is set up already succeeds and changes nothing (see volume.Plugin).
//
// The sub-packages have one topic each: devices keeps track of what is attached and staged, and expand expands volumes.
package volumemanager
