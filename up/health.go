package up

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/berth-dev/berth/internal/accept"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/up/supervisor"
)

// healthSocket is the socket on which a process of the cluster shows the supervisor that it does not hang: it accepts a
// connection, writes a line and closes it.
func (l Layout) healthSocket(process string) string {
	return filepath.Join(l.RunDir, process+"-health.sock")
}

// socketHealth is the Health of a process with a healthSocket.
func (l Layout) socketHealth(process string, failures int) *supervisor.Health {
	return &supervisor.Health{Network: "unix", Address: l.healthSocket(process), Timeout: healthTimeout, Failures: failures}
}

// serveHealth serves the healthSocket of this process until it ends.
func (c *Cluster) serveHealth(ctx context.Context) error {
	path := c.healthSocket(nodeProcess)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // of the process before
		return fmt.Errorf("serve the health of the node's process: %w", err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("serve the health of the node's process: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return errors.Join(err, listener.Close())
	}
	go contain.Loop(ctx, "up.serveHealth", "", func(ctx context.Context) { // until this process ends
		for {
			conn, err := accept.Next(ctx, listener)
			if err != nil {
				return
			}
			c.replyHealth(ctx, conn)
		}
	})()
	return nil
}

// replyHealth writes a line unless the kubelet does not respond.
func (c *Cluster) replyHealth(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	if err := c.healthy(ctx); err != nil {
		c.logger.Warn("the kubelet does not respond", "error", err)
		return
	}
	_, _ = conn.Write([]byte("ok\n")) // the supervisor waits no longer
}

// healthy returns an error if the kubelet that runs does not respond.
func (c *Cluster) healthy(ctx context.Context) error {
	kubelet := c.kubelet.Load()
	if kubelet == nil {
		return nil
	}
	kubelet.mu.Lock()
	k := kubelet.k
	kubelet.mu.Unlock()
	if k == nil {
		return nil
	}
	return k.Healthy(ctx)
}
