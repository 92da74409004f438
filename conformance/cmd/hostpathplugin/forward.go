package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
)

// forward connects each client of one listener with the next client of the other, in the order of their arrival, until ctx is done.
// Clients of either may come first.
func forward(ctx context.Context, socket, tunnel net.Listener) error {
	stop := context.AfterFunc(ctx, func() {
		_ = socket.Close()
		_ = tunnel.Close()
	})
	defer stop()
	var copies sync.WaitGroup
	defer copies.Wait()
	for {
		near, err := socket.Accept()
		if err != nil {
			return ended(ctx, err)
		}
		far, err := tunnel.Accept()
		if err != nil {
			_ = near.Close()
			return ended(ctx, err)
		}
		copies.Go(func() { connect(ctx, near, far) })
	}
}

// ended returns nil for the error of a listener that was closed because ctx is done.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("accept a connection: %w", err)
}

// connect copies in both directions until one side has closed its connection.
func connect(ctx context.Context, near, far net.Conn) {
	shut := sync.OnceFunc(func() {
		_ = near.Close()
		_ = far.Close()
	})
	defer context.AfterFunc(ctx, shut)()
	defer shut()
	var back sync.WaitGroup
	back.Go(func() {
		defer shut()
		_, _ = io.Copy(near, far)
	})
	_, _ = io.Copy(far, near)
	shut()
	back.Wait()
}
