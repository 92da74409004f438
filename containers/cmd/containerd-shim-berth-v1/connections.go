package main

import (
	"context"
	"net"
	"sync"

	"github.com/containerd/ttrpc"
)

// connections counts the connections of a server, as its handshaker: only processes of the same user may connect.
type connections struct {
	mu   sync.Mutex // guards below
	open int
	none chan struct{} // closed when open becomes 0; nil if there is no waiter
}

// Handshake is ttrpc's.
func (c *connections) Handshake(ctx context.Context, conn net.Conn) (net.Conn, any, error) {
	checked, info, err := ttrpc.UnixSocketRequireSameUser().Handshake(ctx, conn)
	if err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	c.open++
	c.mu.Unlock()
	return &counted{Conn: checked, closed: sync.OnceFunc(c.closed)}, info, nil
}

func (c *connections) closed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
	if c.open == 0 && c.none != nil {
		close(c.none)
		c.none = nil
	}
}

// wait waits until there is no connection, or ctx is done.
func (c *connections) wait(ctx context.Context) {
	c.mu.Lock()
	if c.open == 0 {
		c.mu.Unlock()
		return
	}
	none := make(chan struct{})
	c.none = none
	c.mu.Unlock()
	select {
	case <-none:
	case <-ctx.Done():
	}
}

// counted is a connection that is counted until it is closed.
type counted struct {
	net.Conn
	closed func()
}

// Close closes the connection.
func (c *counted) Close() error {
	defer c.closed()
	return c.Conn.Close()
}
