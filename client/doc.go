// Package client reads from an informer's cache and writes to the API, and never shows a state older than what was
// written through it or read from it before.
//
// A [Resource] is one kind of object. After a write through it has returned, every later Get, List or Index shows that
// write or something newer. Nobody waits for that: the result of a write is laid over the cache until the cache has
// caught up, which its resource version tells.
//
// Where the outcome of a write is not known, because the answer was lost or does not tell, the key is looked up in the
// API once, at the next read or right away. This is so for deletions, whose answer has no version, and for writes
// that end with a timeout. A read can fail only where such a look-up does.
//
// It relies on resource versions being decimal numbers that grow with each write, as Kubernetes 1.35 and later
// promise, and on informers whose store changes at once on a relist, as those of client-go 0.36 do.
package client
