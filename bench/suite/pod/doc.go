// Package pod sets Berth's kubelet beside Kubernetes' own, and both beside the floor: the same calls to the container
// runtime with nothing around them. It measures how fast Pods come and go, and what a node costs that has nothing to
// do.
package pod
