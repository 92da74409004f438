// Package testbed starts what benchmarks on a real cluster need: a control plane, a container runtime, Berth's kubelet or
// the one of Kubernetes, a scene in which Pods may be made, and direct calls to the container runtime.
package testbed
