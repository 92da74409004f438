// Package clustermetrics serves the metrics of all processes of a cluster at one path of the API server, so that a Prometheus needs
// one target and one identity: the control plane's own, those of each node's kubelet with the controllers of its process, those
// of kube-proxy, and those of the cluster's DNS. The API server authenticates and authorizes the requests as all others.
//
// Everything is read when a client requests it, and never otherwise. The labels berth_process and berth_node of each sample say where
// it is from, so that metrics that many processes have, such as those of Go's runtime, stay apart.
package clustermetrics
