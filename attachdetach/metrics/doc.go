// Package metrics is the metrics of the attach/detach controller, under the names that dashboards for Kubernetes know.
package metrics
