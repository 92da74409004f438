// Package claims has DRA drivers prepare the ResourceClaims of Pods on the node (dynamic resource allocation), and tells containers
// which CDI devices they get with that.
//
// What was prepared is in the file dra_manager_state, whose name and content are those of upstream's kubelet.
package claims
