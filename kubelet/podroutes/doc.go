// Package podroutes gives a machine a route to the Pods of each other node of its cluster: to the node's podCIDR, by the
// node's address. It follows the Nodes and the kernel's routes by events.
//
// A route needs a next hop on a link that both machines share. The Controller reports a node to which there is none in an
// event on its Node, and a node that reaches no other in its own condition NetworkUnavailable.
//
// The routes carry a protocol number of their own, by which a later start recognizes them, whatever ended the last one.
package podroutes
