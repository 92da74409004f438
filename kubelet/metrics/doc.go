// Package metrics holds the kubelet's metrics of Pods, images and the container runtime, under the names that the
// Kubernetes kubelet has for them.
package metrics
