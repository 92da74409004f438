// Package daemon runs the kubelet of one machine: it finds the machine's name and addresses, the node's identity at the API server
// and the serving certificate, and runs an agent with them until it is stopped. `berth kubelet` and `berth node` are two command
// lines of it.
//
// [Run] changes nothing on disk before the configuration, the kubeconfig and the container runtime's socket have been checked.
package daemon
