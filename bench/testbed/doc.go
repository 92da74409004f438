// Package testbed starts what benchmarks on a real cluster need: a control plane, a container runtime, Berth's kubelet or
// that of Kubernetes, a test node for Pods, and direct calls to the container runtime.
package testbed
