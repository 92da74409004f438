// Package nodenetwork reads and uses the networks of this machine's Pods for explanations: the sockets on which their
// processes listen, their resolver configuration, connections from their network namespaces, and the state of kube-proxy
// and DNS.
//
// It finds the processes of a Pod through the container runtime, and everything else in /proc. It needs root.
package nodenetwork
