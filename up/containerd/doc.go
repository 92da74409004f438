// Package containerd knows how one cluster's containerd is set up: its configuration and its pod network's, how to
// start it, and how to check that it is ready and belongs to this cluster.
//
// It starts nothing itself. Everything of a cluster lies under its own directories and carries the name of its own
// bridge, so that clusters side by side share neither files nor addresses nor iptables chains.
package containerd
