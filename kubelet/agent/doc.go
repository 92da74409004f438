// Package agent is the kubelet of a node: it runs the Pods that the API server binds to the node, and static Pods.
//
// [New] composes finished components, each from those before it:
//
//	runtime -> node -> storage -> pods -> housekeeping -> server
//
// [Agent.Start] starts them in the order of one table and stops them in reverse. The way of a Pod leads through them:
//
//	config -> admission -> podworker -> volumemanager |
//	                                 -> images        |-> containers -> prober -> status -> API
//	                                 -> sandbox (cri) |
//
// Components that come first reach those that come later by values that are made before both: podworker.Signals wake the
// workers of Pods, status.Broadcaster sends the changes of Pods.
package agent
