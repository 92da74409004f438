package storage

import (
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"

	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/feature"
)

// Connection is the connection to etcd that resources share. It is safe for concurrent use.
type Connection struct {
	client     *clientv3.Client
	unreadable func()
}

// Open returns a connection to the etcd at an endpoint, which it connects to when it is first used. There are no keepalives: the end of
// the server closes its socket. Close ends it, after the storages that use it. unreadable is called each time that an object of the storages cannot
// be decoded or decrypted, by any goroutine; it must return at once.
func Open(endpoint string, unreadable func()) (*Connection, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		return nil, fmt.Errorf("create a client of etcd at %s: %w", endpoint, err)
	}
	// The storages ask for what etcd can do, but their own clients have no endpoint.
	feature.DefaultFeatureSupportChecker.CheckClient(client.Ctx(), client, storage.RequestWatchProgress)
	return &Connection{client: client, unreadable: unreadable}, nil
}

// Close closes the connection. Requests under way fail.
func (c *Connection) Close() error {
	if err := c.client.Close(); err != nil && !errors.Is(err, c.client.Ctx().Err()) {
		return fmt.Errorf("close the connection to etcd: %w", err)
	}
	return nil
}

// newClient returns a client for one resource. Its watches are a stream of their own, so that a busy resource does not hold up the watches
// of others. Closing it ends these, and leaves the connection.
func (c *Connection) newClient() *kubernetes.Client {
	own := clientv3.NewCtxClient(c.client.Ctx())
	own.KV = etcd3.NewETCDLatencyTracker(c.client.KV)
	own.Watcher, own.Lease = clientv3.NewWatcher(c.client), clientv3.NewLease(c.client)
	client := &kubernetes.Client{Client: own}
	client.Kubernetes = client
	return client
}
