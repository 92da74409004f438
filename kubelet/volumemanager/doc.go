// Package volumemanager sees to it that the volumes of the Pods of this node are there while the Pods run, follow
// their objects, and are gone afterwards.
//
// There is no table of desired and actual state and no loop that compares them. [Manager.Mount] is called by a Pod's
// worker and drives each of the Pod's volumes on its own, all at the same time; a volume that fails is tried again
// after a growing pause or at once when an object changes that may cure it. [Manager.Unmount] goes by what it finds
// on disk, so it is the same for a Pod that ends and for one that an earlier process left behind. What the node agent
// knew before a crash is not read back: setting a volume up that is set up already finds it so (see volume.Plugin).
package volumemanager
