// Package pleg watches the container runtime and says which Pods changed there.
//
// An event of the runtime never carries meaning of its own: it marks its Pod dirty, and whoever owns the Pod reads
// the Pod's state anew with [Watcher.Read]. Events are taken off the stream by a goroutine that does nothing else,
// because a slow reader holds up the runtime itself. Everything is listed at each (re)connect, since events are not
// kept for us, and slowly beside that as a net; what the net catches is counted, so that a lost event is seen.
package pleg
