// Package client sets a read through Berth's client, which also shows the writes that the cache has not seen, beside a
// bare read of the informer's cache.
package client
