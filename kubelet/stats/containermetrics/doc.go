// Package containermetrics serves /metrics/cadvisor: what the kernel counts for the machine, for each cgroup of its Pods, and for those of
// the node's own programs, as cAdvisor's metrics with the labels that the kubelet gives them.
//
// Everything is read when the metrics are gathered. A node whose metrics are not gathered spends nothing on them.
package containermetrics
