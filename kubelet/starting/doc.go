// Package starting lets writes to the API server that can wait yield to the sandboxes and containers that the kubelet is starting. Many
// Pods that start at once have all processors busy, and each request takes some of that time from their start.
//
// Runtime notifies a Gate of the starts. Who writes asks the Gate: by Yield, which blocks, or by Yields.
package starting
