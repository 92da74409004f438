// Package hostports makes the rules that lead from ports of the host to Pods that run again, when another program has removed them.
//
// The rules are those of the CNI plugin portmap, which makes them when a Pod starts and not again. It is called as the container runtime
// has called it, with what the CNI library has kept of that in the files of its cache.
package hostports
