// Package cm manages the cgroups of Pods, and computes the limits of Pods and containers.
//
// The tree is upstream's: ROOT/kubepods with one cgroup for each quality-of-service class but Guaranteed, and one cgroup
// for each Pod in its class. Containers are inside their Pod's cgroup and are created by the runtime. The cgroups
// themselves are all the state: [Manager.Pods] reads it back after a crash. [NodeCgroups] sets up those above all Pods
// and enforces node allocatable.
//
// Cgroup v1 (also hybrid) and v2, and the cgroupfs and systemd drivers, are supported. A controller that is missing or
// cannot be written is logged once and then skipped.
package cm
