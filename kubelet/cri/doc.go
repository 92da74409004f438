// Package cri connects to a container runtime over the Container Runtime Interface, version 1.
//
// It owns the kubelet's one gRPC connection to the runtime: it bounds every call in time, reports each call to an
// observer, and turns connects and disconnects into events, so that nothing polls for them. The client of
// k8s.io/cri-client is not used because it has neither connection events nor an observer.
package cri
