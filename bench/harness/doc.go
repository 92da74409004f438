// Package harness runs benchmarks that compare Berth with another implementation of the same work, so that the results
// can be trusted on a machine that is busy.
//
// Every sample is taken in a process of its own, so that no variant inherits another's heap, caches or goroutines. The
// variants of a case alternate within each round, and their order changes with the round, so that a slow moment of the
// machine affects all of them alike. The load average at the start of each sample is kept with it, and every sample is
// kept, not only the summary.
package harness
