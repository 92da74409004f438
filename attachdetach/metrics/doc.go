// Package metrics has the metrics of the attach/detach controller, with the names that dashboards for Kubernetes use.
package metrics
