// Package supervisor is the process that people start as `berth up` and `berth node --join`: it starts the processes of a
// cluster, starts again those that end or hang, shows what they report, and stops them in order.
//
// It knows nothing of Kubernetes. The control plane is described by a [Plan]; the node's process, which is started at the same
// time, asks over a socket for containerd, kube-proxy and DNS, because they need preparations. Whatever the node's process
// does, all others run on, and when it is started again it finds them.
package supervisor
