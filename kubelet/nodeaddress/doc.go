// Package nodeaddress knows the addresses of the node, and follows them when the machine's change: a lease that is not
// renewed, another network, an interface that comes later. The kernel tells of each change; what the addresses are then
// is asked anew, whatever the change was.
package nodeaddress
