// Package userns allocates to each Pod that uses a user namespace a block of the node's user and group ids that no
// other Pod has. The block is recorded in the Pod's directory, in the file format of upstream's kubelet, so that a new
// process finds it.
package userns
