// Package server is the kubelet's HTTPS server: the API that the API server and tools use on a node.
//
// It serves Pods, container logs, exec, attach, port-forward, run, metrics, configuration and health to callers that
// the API server authenticates and authorizes. It has no Pod state of its own: everything comes from the [Host].
package server
