package csidriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/internal/loopdev"
	"github.com/berth-dev/berth/volume/mounts"
)

// Driver serves the three services of CSI. Its methods are safe for concurrent use. Calls that change something
// are refused as Unavailable unless Start is running.
type Driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer

	config   Config
	logger   *slog.Logger
	store    *store
	loops    *loops
	mounter  mounts.Mounter
	inflight *inflight
}

var (
	_ csi.IdentityServer   = (*Driver)(nil)
	_ csi.ControllerServer = (*Driver)(nil)
	_ csi.NodeServer       = (*Driver)(nil)
)

// New makes a Driver. It touches nothing before Start.
func New(deps Deps, config Config) (*Driver, error) {
	if err := config.complete(); err != nil {
		return nil, fmt.Errorf("make csi driver: %w", err)
	}
	logger := deps.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Driver{
		config: config, logger: logger, mounter: mounts.Syscalls{}, inflight: newInflight(),
		loops: &loops{devices: loopdev.New()},
		store: &store{root: config.Root, thin: config.Thin},
	}, nil
}

// Serve makes a Driver and runs it until ctx ends.
func Serve(ctx context.Context, deps Deps, config Config) error {
	driver, err := New(deps, config)
	if err != nil {
		return err
	}
	return driver.Start(ctx)
}

// Start serves on the socket until ctx ends, then waits for what is under way. It first clears away what an
// earlier process left unfinished. It may be called once.
func (d *Driver) Start(ctx context.Context) error {
	if !d.config.NodeOnly {
		unlock, err := d.store.open()
		if err != nil {
			return fmt.Errorf("start csi driver: %w", err)
		}
		defer unlock()
		if err := d.thaw(); err != nil {
			return fmt.Errorf("start csi driver: %w", err)
		}
	}
	listener, err := listen(d.config.Endpoint)
	if err != nil {
		return fmt.Errorf("start csi driver: %w", err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(d.logCall), grpc.WaitForHandlers(true))
	csi.RegisterIdentityServer(server, d)
	if !d.config.NodeOnly {
		csi.RegisterControllerServer(server, d)
	}
	csi.RegisterNodeServer(server, d)

	d.inflight.start(ctx)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	d.logger.Info("csi driver serves", "name", d.config.Name, "endpoint", d.config.Endpoint, "root", d.config.Root)
	select {
	case err = <-served:
	case <-ctx.Done():
		// Callers that wait for their answers are let go by the work's end.
		d.inflight.stop()
		server.Stop()
		err = <-served
	}
	d.inflight.stop()
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve csi driver on %q: %w", d.config.Endpoint, err)
	}
	return nil
}

// listen takes the socket's place. A socket file that is there belongs to a process that is gone: the lock on the
// root is ours.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("make directory of socket: %w", err)
	}
	info, err := os.Lstat(path)
	switch {
	case err == nil && info.Mode().Type() != os.ModeSocket:
		return nil, fmt.Errorf("listen on %q: something else than a socket is there", path)
	case err == nil:
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove old socket: %w", err)
		}
	case !errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("look for old socket: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("protect socket: %w", err), listener.Close())
	}
	return listener, nil
}

// logCall logs every call's outcome, but never a request: it may hold secrets.
func (d *Driver) logCall(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	resp, err := handler(ctx, req)
	if err == nil {
		d.logger.Debug("csi call done", "method", info.FullMethod)
		return resp, nil
	}
	if _, ok := status.FromError(err); !ok {
		err = status.Error(codes.Internal, err.Error())
	}
	d.logger.Info("csi call failed", "method", info.FullMethod, "error", err)
	return nil, err
}
