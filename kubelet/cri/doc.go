// Package cri connects to a container runtime over the Container Runtime Interface, version 1.
//
// It owns the one gRPC connection that the node agent has: it bounds every call in time, lets an observer see
// each of them, and turns the connection's coming and going into events, so that nothing has to poll for it.
package cri
