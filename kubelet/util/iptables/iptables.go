// Package iptables has the type of names of iptables chains.
package iptables

// Chain is the name of an iptables chain.
type Chain string
