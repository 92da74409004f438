// Package client reads from an informer's cache and writes to the API, and never shows a state older than what was
// written through it or read from it before.
//
// A [Resource] is one kind of object. After a write through it has returned, every later Get, List or Index shows that
// write or something newer. No caller waits for that: an overlay holds the result of a write until the cache has
// caught up, which its resource version shows.
//
// If the outcome of a write is unknown, because the response was lost or does not contain it, the key is read from the API
// once, at the next read or at once. This is so for deletions, whose response has no version, and for writes that end with
// a timeout. A read can fail only if such a read from the API does.
//
// A component that only reads, or that tolerates a cache older than its own writes, needs no Resource: an informer's lister
// is simpler.
//
// It relies on resource versions being decimal numbers that grow with each write, as Kubernetes 1.35 and later
// promise, and on informers whose store changes at once on a relist, as those of client-go 0.36 do.
package client
