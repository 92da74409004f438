// Package claims has DRA drivers prepare the ResourceClaims of Pods on the node (dynamic resource allocation), and has the CDI devices
// that containers get with that.
//
// What was prepared is in the file dra_manager_state, whose name and content are those of upstream's kubelet.
package claims
