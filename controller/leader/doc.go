// Package leader lets one of several copies of a program do the work, by a Lease in the cluster.
//
// The Lease is renewed over a client of its own, so that a program whose other requests are throttled does not lose
// it. Losing it ends the work and returns an error; the process goes on, and may try again.
package leader
