// Package eviction protects the node when memory, disk or process IDs run short: it reports the shortage as conditions of the
// Node, rejects new Pods, frees what no running container needs, and ends one Pod after the other until enough is free.
//
// A [Threshold] says how much of a resource, named by a [Signal], has to be available. A hard threshold is acted upon as soon as
// it is met; a soft one when it has been met for its grace period. Once acted upon, a threshold counts as met until its minimum
// reclaim is available, too.
//
// What is decided follows from values alone, in pure functions:
//
//   - [ParseThresholds] reads the thresholds of a KubeletConfiguration, Layout.thresholds adapts them to the file systems;
//   - state.next says from an observation which thresholds are met, and state.conditions which conditions the Node has;
//   - rank orders the Pods: first those that use more than they request, of these the one with the lowest priority, of these
//     the one that exceeds its request most;
//   - message writes why a Pod was evicted, and nextObservation when to observe again.
//
// The [Manager] connects them with the machine ([Machine], implemented by package machine), the Pod workers and the Node. It
// runs in one goroutine:
//
//	event of the kernel, or timer -> observe -> state.next -> conditions -> Node, admission
//	                                       `-> threshold is due -> remove ended containers, unused images -> observe
//	                                                           `-> rank -> evict one Pod -> wait until it is gone -> observe
//
// The kernel reports the use of memory: thresholds of cgroup v1, pressure stall information and memory.events of cgroup v2.
// The space of a file system and the number of processes have no event: they are observed again when the resource can run out
// at the earliest, at the highest rate that machines reach, at most every 10 s. See docs/timers.md.
//
// Static, mirror and critical Pods are never evicted. Limits of local ephemeral storage are the work of package localstorage.
package eviction
