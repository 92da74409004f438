// Package harness runs benchmarks that set Berth beside another implementation of the same work, so that what comes
// out can be trusted on a machine that is not quiet.
//
// Every sample is taken in a process of its own, so that no variant inherits another's heap, caches or goroutines. The
// variants of a case take turns within each round, and the order turns with the round, so that a slow moment of the
// machine falls on all of them alike. The load average at the start of each sample is kept with it, and every sample is
// kept, not only the summary.
package harness
