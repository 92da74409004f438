// Package operationexecutor runs operations on volumes: at most one at a time for a volume, with a growing pause
// after failures, and however many volumes there are at a cost that depends on the one volume only.
//
// [Keyed] is the executor itself and knows nothing of what its operations do.
package operationexecutor
