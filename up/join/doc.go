// Package join has what a machine needs to join a cluster of `berth up`: the bootstrap token, the address of the API server
// and the hash of the cluster's CA, all of which `berth token create` prints, and what the cluster says about itself to
// its nodes.
package join
