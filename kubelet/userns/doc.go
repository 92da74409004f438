// Package userns gives each Pod that asks for a user namespace a block of the node's user and group ids that no other
// Pod has. A block is noted in the Pod's directory, in the words that upstream's kubelet writes there, so that a new
// process finds it again.
package userns
