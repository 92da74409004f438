// Package packetfilter keeps the kubelet's chains in the node's packet filter, which other programs rely on: one whose
// existence says which kind of iptables the node uses, and one that drops packets for the node's loopback addresses that come
// from elsewhere, which a node with route_localnet would accept from its Pods.
package packetfilter
