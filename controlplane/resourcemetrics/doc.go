// Package resourcemetrics serves the API metrics.k8s.io in the API server itself: kubectl top and the HorizontalPodAutoscaler
// work without another program.
//
// The CPU and memory of Nodes and Pods are read from the kubelets' /stats/summary when a client requests them, and never
// otherwise. CPU is a rate between two readings: the first request after a pause takes two, a second apart; requests that follow
// use the readings of those before. A kubelet is reached as for kubectl logs: at its Node's address, with its certificate verified.
//
// The group is registered as an APIService without a Service. Whoever installs metrics-server replaces that APIService, and is
// left alone.
package resourcemetrics
