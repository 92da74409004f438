// Package capacity publishes the storage capacity of a CSI driver for the scheduler: CSIStorageCapacity objects, one for each
// of the driver's StorageClasses and each topology in which the driver has nodes.
//
// An object is computed again when something changes on which it depends: its class, the nodes of its topology, a volume
// that is created, expanded or deleted there, or the object itself. What changes without an event, such as other files on
// the same disk, is found by asking the driver once per period. A capacity that changed by less than a hundredth is not
// written.
//
// Names are derived from driver, class and topology, so that every publisher writes the same objects: a crash leaves no
// duplicates, and an object whose class or topology does not exist any more is deleted, whichever process created it.
package capacity
