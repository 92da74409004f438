// Package runtime compares Berth's controller runtime with controller-runtime: how fast keys go from a source through the
// queue to the reconciler, what a waiting key costs, and how long a live event waits behind a long initial list.
package runtime
