// Package attachdetach is the attach/detach controller: it attaches the volumes of scheduled Pods to the Pods' nodes, and
// detaches them when no Pod uses them there any more.
//
// It has no state on disk. The actual state of the world follows from the VolumeAttachment objects and from
// status.volumesAttached of the nodes, the desired state from the Pods; both are read at the start.
//
// [Controller] watches objects and adds their names to a queue; one goroutine, the populator, reads these objects and updates
// the two states of the world of package cache; package reconciler acts on the difference; and package operationexecutor
// calls the plugin of package csi, which attaches and detaches.
package attachdetach
