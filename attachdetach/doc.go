// Package attachdetach is the attach/detach controller: it sees to it that the volumes of scheduled Pods are attached
// to the Pods' nodes, and detached when no Pod needs them there any more.
//
// It keeps nothing on disk. What is attached stands in the VolumeAttachment objects and in status.volumesAttached of
// the nodes, and what should be attached follows from the Pods; both are read at the start.
//
// The parts: watches fill a queue of names ([Controller]); one goroutine, the feeder, takes the names and writes what
// the objects say into the two worlds of package cache; package reconciler acts on the difference; and package
// operationexecutor calls the plugin, of package csi, that does the work.
package attachdetach
