// Package iptables has the vocabulary of the node's packet filter.
package iptables

// Chain is the name of an iptables chain.
type Chain string
