// Package loadbalancer is a controller that gives Services of type LoadBalancer their addresses, without a Pod: those of the
// nodes, or one of a range for each Service. kube-proxy forwards what arrives there.
//
// With the nodes' addresses a port can belong to one Service only: another one that needs it waits, and gets it when the
// first one is gone. With a range, one node at a time has the Service's address on its interface; the annotation
// AnnouncedByAnnotation names it, and package announce follows that on each node.
//
// An address is recorded in the Service's status and nowhere else. A Service whose loadBalancerClass is not Class, if it has
// one, belongs to another controller and is never changed.
package loadbalancer
