// Package operationexecutor runs operations on volumes: at most one at a time for a volume, with a growing pause
// after failures, and however many volumes there are at a cost that depends on the one volume only.
//
// [Keyed] is the executor itself and knows nothing of what its operations do. [Executor] is an [OperationExecutor]
// on top of it: it attaches volumes to nodes and detaches them through an [AttachablePlugin], and writes what came
// of it into the caller's actual state of the world.
package operationexecutor
