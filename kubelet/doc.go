// Package kubelet is the node agent: it makes the Pods that the API server binds to a node run there.
//
// This package only puts the rooms together. The way of a Pod leads through them in this order:
//
//	config -> admission (here) -> podworker -> volumemanager |
//	                                        -> images        |-> containers -> prober -> status -> API
//	                                        -> sandbox (cri) |
//
// pleg wakes a Pod's worker when the runtime says that something changed, node keeps the Node object, and server
// answers the API server's questions (logs, exec, attach, port-forward).
package kubelet
