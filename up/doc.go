// Package up runs a whole Kubernetes on one Linux machine: it starts and supervises berth-controlplane and
// containerd, runs Berth's controllers and kubelet in its own process, and takes all of it down again in order.
//
// A cluster is its data directory. Everything that must outlive the process lies there; everything that must
// not (sockets, pid files, the container runtime's state) lies in a run directory derived from it. Start and
// recovery are the same code: [Cluster.Run] takes over whatever an earlier run left, however it ended.
package up
