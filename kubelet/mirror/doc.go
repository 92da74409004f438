// Package mirror shows static Pods in the API server: for each it keeps a mirror Pod there, and reports the static
// Pod's status through it.
//
// A static Pod's life does not depend on its mirror: who deletes the mirror deletes nothing on the node, and gets
// another mirror. The mirror goes when nothing of the static Pod is left.
package mirror
