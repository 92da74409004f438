package csidriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/csidriver/iolimit"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/loopdev"
	"github.com/berth-dev/berth/volume/mounts"
)

// Driver implements the services of CSI. Its methods are safe for concurrent use. Calls that change something fail
// with Unavailable unless Start is running.
//
// It has many methods because the services have, and one driver serves all of them: they share the records of the
// volumes and of the calls in progress.
type Driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer
	csi.UnimplementedNodeServer
	csi.UnimplementedSnapshotMetadataServer

	config   Config
	logger   *slog.Logger
	store    *store
	loops    *loops
	mounter  mounts.Mounter
	inflight *inflight
	limiter  *iolimit.Limiter
}

var (
	_ csi.IdentityServer        = (*Driver)(nil)
	_ csi.ControllerServer      = (*Driver)(nil)
	_ csi.GroupControllerServer = (*Driver)(nil)
	_ csi.NodeServer            = (*Driver)(nil)

	_ csi.SnapshotMetadataServer = (*Driver)(nil)
)

// New returns a Driver that does nothing before Start.
func New(deps Deps, config Config) (*Driver, error) {
	if err := config.complete(); err != nil {
		return nil, fmt.Errorf("csidriver: %w", err)
	}
	logger := deps.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Driver{
		config: config, logger: logger, mounter: mounts.Syscalls{}, inflight: newInflight(), limiter: iolimit.New(logger),
		loops: &loops{devices: loopdev.New()},
		store: &store{root: config.Root, keepFree: config.KeepFree, logger: logger},
	}, nil
}

// Serve runs a new Driver until ctx is done.
func Serve(ctx context.Context, deps Deps, config Config) error {
	driver, err := New(deps, config)
	if err != nil {
		return err
	}
	return driver.Start(ctx)
}

// Start serves on the socket until ctx is done, then waits for the operations in flight. It first removes what an earlier
// process left unfinished. It may be called once.
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
	d.limitAttached()
	if err := d.loops.devices.CheckMapper(); err != nil {
		d.logger.Warn("a Pod can change size, offset and sector size of its own raw block devices until it ends; to prevent it, load the module dm_mod",
			"error", err)
	}
	listener, err := listen(d.config.Endpoint)
	if err != nil {
		return fmt.Errorf("start csi driver: %w", err)
	}
	server := grpc.NewServer(append(contain.ServerOptions("csidriver.call", d.logCall), grpc.WaitForHandlers(true))...)
	csi.RegisterIdentityServer(server, d)
	if !d.config.NodeOnly {
		csi.RegisterControllerServer(server, d)
		csi.RegisterGroupControllerServer(server, d)
	}
	if d.store.reflinks {
		csi.RegisterSnapshotMetadataServer(server, d)
	}
	csi.RegisterNodeServer(server, d)

	d.inflight.start(ctx)
	limiting, stopLimiting := context.WithCancel(ctx)
	var limiter sync.WaitGroup
	limiter.Go(contain.Loop(limiting, "csidriver.limiter", "", func(ctx context.Context) {
		if err := d.limiter.Start(ctx); err != nil {
			d.logger.Error("failed to watch cgroups; the I/O of new containers is not limited", "error", err)
		}
	}))
	defer limiter.Wait()
	defer stopLimiting()
	served := make(chan error, 1)
	go func() { served <- contain.Do("csidriver.Start", "", func() error { return server.Serve(listener) }) }()
	d.logger.Info("serving the CSI driver", "name", d.config.Name, "endpoint", d.config.Endpoint, "root", d.config.Root)
	select {
	case err = <-served:
	case <-ctx.Done():
		// Stopping the operations ends the calls that wait for them.
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

// listen listens on the socket. It replaces an existing socket file: the lock on the root proves that the process that
// created it has ended.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("create directory of socket: %w", err)
	}
	info, err := os.Lstat(path)
	switch {
	case err == nil && info.Mode().Type() != os.ModeSocket:
		return nil, fmt.Errorf("listen on %q: the file exists and is not a socket", path)
	case err == nil:
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove old socket: %w", err)
		}
	case !errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("find old socket: %w", err)
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

// logCall logs the result of every call, but never a request: it may contain secrets.
func (d *Driver) logCall(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	resp, err := handler(ctx, req)
	if err == nil {
		d.logger.Debug("CSI call succeeded", "method", info.FullMethod)
		return resp, nil
	}
	if _, ok := status.FromError(err); !ok {
		err = status.Error(codes.Internal, err.Error())
	}
	d.logger.Info("CSI call failed", "method", info.FullMethod, "error", err)
	return nil, err
}
