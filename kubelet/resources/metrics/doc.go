// Package metrics has the metrics of the resource managers, by the names of upstream's kubelet.
package metrics
