// Package announce gives a machine's network interface the addresses of those Services of type LoadBalancer that the
// machine's node announces, so that the machine and its neighbours on the link reach them. It follows the Services by
// events; kube-proxy forwards what arrives.
package announce
