// Package storage has the resources of the API server store their objects over one connection to etcd. Upstream opens one for each resource,
// some eighty, and waits for each before it opens the next: a third of the time in which an API server starts, and buffers,
// goroutines and keepalives in an idle one. With an etcd in the same process, behind a unix socket, they protect from nothing.
package storage
