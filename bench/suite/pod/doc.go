// Package pod compares Berth's kubelet with Kubernetes' own, and both with the baseline: the same calls to the container
// runtime with nothing around them. It measures how fast Pods start and stop, and what an idle node costs.
package pod
