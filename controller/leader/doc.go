// Package leader elects one of several replicas of a program by a Lease in the cluster.
//
// The Lease is renewed by a client of its own, so that a program whose other requests are throttled does not lose it.
// Losing it ends the work and returns an error; the process continues and may call Run again.
package leader
