// Package probe probes a container once: by a command, an HTTP request, a TCP connection or a gRPC health call.
//
// Package prober has periods and thresholds.
package probe
