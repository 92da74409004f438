// Package healthsocket shows the process that has started this one that it does not hang: whoever connects to a unix socket
// gets a line if a check succeeds.
package healthsocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/controlplane/atomicfile"
	"github.com/berth-dev/berth/controlplane/contain"
)

// checkTimeout bounds one check: whoever asks waits no longer.
const checkTimeout = 10 * time.Second

// acceptPause is the time between two attempts to accept a connection while the process has no descriptors left.
const acceptPause = 100 * time.Millisecond

// Serve serves the socket at path until the listener that it returns is closed. It replaces what an earlier process has left
// there.
func Serve(ctx context.Context, path string, check func(ctx context.Context) error) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("serve health: %w", err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("serve health: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("serve health: %w", err), listener.Close())
	}
	go contain.Guard("healthsocket.accept", func() { accept(ctx, listener, check) })()
	return listener, nil
}

// accept replies to all that connect until the listener is closed. A process that has no descriptors left for a while does not hang.
func accept(ctx context.Context, listener net.Listener, check func(ctx context.Context) error) {
	for {
		conn, err := listener.Accept()
		switch {
		case err == nil:
			go contain.Guard("healthsocket.reply", func() { reply(ctx, conn, check) })()
		case !atomicfile.IsPassing(err):
			return // it is closed
		default:
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
				return
			}
		}
	}
}

func reply(ctx context.Context, conn net.Conn, check func(ctx context.Context) error) {
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if err := check(ctx); err != nil {
		klog.ErrorS(err, "The API server does not respond to a check of its health")
		return
	}
	_, _ = conn.Write([]byte("ok\n")) // whoever asked waits no longer
}
