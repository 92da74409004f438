// Package pleg watches the container runtime and reports which Pods changed there.
//
// An event only marks its Pod as changed: the Pod's owner reads the Pod's state with [Watcher.Read]. A goroutine that does
// nothing else receives the events, because a slow receiver blocks the runtime. Everything is listed after each
// (re)connect, since the runtime does not store events, and periodically as a safety net; a change that only the relist
// finds is counted, so that lost events are visible.
package pleg
