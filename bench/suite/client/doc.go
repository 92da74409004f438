// Package client compares a read through Berth's client, which also returns writes that the cache does not have yet, with
// a read of the informer's cache.
package client
