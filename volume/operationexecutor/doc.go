// Package operationexecutor attaches volumes to nodes and detaches them: one operation at a time for each volume, with a
// growing backoff after failures, at a cost that does not depend on the number of volumes.
//
// [Executor] is the [OperationExecutor] of controllers. It calls the [AttachablePlugin] of the volume and writes the
// result into the caller's actual state of the world.
package operationexecutor
