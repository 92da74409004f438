// Package network computes the names that a Pod's containers use: hostname, /etc/hosts and resolver configuration.
//
// Its functions are pure except [DNS.ForPod], which reads the node's resolver file, and [WriteHosts].
package network
