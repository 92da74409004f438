// Package node manages the Node object of this machine: it registers it, reports its status and renews its lease.
//
// The status is computed when something changes and written when it differs from that of the API server; a slow
// periodic write shows that the kubelet is alive. The lease is the heartbeat and has its own client.
package node
