// Package network says what a Pod's containers see of names: hostname, /etc/hosts and resolver configuration.
//
// The functions are pure but for [DNS.ForPod], which reads the node's resolver file, and [WriteHosts].
package network
