// Package nodeaddress keeps the current addresses of the node and updates them when the machine's change: a lost lease,
// another network, an interface that appears later. Kernel notifications trigger the update; the addresses are always
// determined anew, whatever the notification says.
package nodeaddress
