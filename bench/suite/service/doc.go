// Package service measures how soon a cluster's Services are reachable and their names known, with Berth's configuration of
// kube-proxy and CoreDNS and with the defaults of Kubernetes.
package service
