// Package mirror shows static Pods in the API: it keeps a mirror Pod for each, and writes the static Pod's status to it.
//
// A static Pod does not depend on its mirror Pod: deleting the mirror Pod changes nothing on the node, and another one is
// created. The mirror Pod is deleted when nothing of the static Pod is left.
package mirror
