// Package server is the node agent's HTTPS server: what the API server and tools ask a node for.
//
// It serves Pods, container logs, exec, attach, port-forward, run, metrics, configuration and health to callers that
// the API server knows and allows. It holds no Pod state of its own: all answers come from the [Host].
package server
