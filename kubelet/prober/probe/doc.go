// Package probe looks once at a container: by a command, an HTTP request, a TCP connection or a gRPC health call.
//
// It knows nothing of periods and thresholds; package prober does that.
package probe
