// Package capacity tells the scheduler how much room a CSI driver has: it publishes CSIStorageCapacity objects, one for
// each of the driver's StorageClasses and each place (topology segments) where the driver has nodes.
//
// An object is worked out anew when something changed that it depends on: its class, the nodes of its place, a volume
// that was made, grown or removed there, the object itself. What changes without an event, such as files of others on
// the same disk, is found by asking again once a period. A value that moved by less than a hundredth is not written.
//
// Names are derived from driver, class and place, so that whoever publishes writes the same objects: nothing is doubled
// after a crash, and an object whose class or place is gone is removed, whichever process made it.
package capacity
