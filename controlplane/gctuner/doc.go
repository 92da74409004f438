// Package gctuner makes Go's garbage collector run less often while the process allocates much memory, and more often while it
// allocates next to none.
//
// An idle control plane should be small, and one that creates hundreds of objects at once should not spend a sixth of its
// time on garbage collection. No single value of GOGC does both, so the package changes it with the rate at which memory
// is allocated. It reads that rate after each collection, and periodically while it is high, but never while it is low. During a
// start, which allocates little that does not stay, there is no collection unless memory is short.
package gctuner
