// Package iptables keeps chains and rules in the machine's packet filter by its iptables programs, for those that have to be in
// the tables of other programs.
//
// A program that flushes them causes an event of the kernel, and they are made again.
package iptables
