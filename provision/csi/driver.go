package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"sync"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// errWrongDriver says that somebody else serves on the socket.
var errWrongDriver = errors.New("the socket belongs to another driver")

// maxReconnectDelay is the longest pause between two tries to connect, for when the socket's directory cannot be watched.
const maxReconnectDelay = 5 * time.Second

// capabilities are what a driver says that it can do.
type capabilities struct {
	version  string
	topology bool
	rpc      map[csiapi.ControllerServiceCapability_RPC_Type]bool
}

// driver is the connection to a driver, made with the first call.
type driver struct {
	config Config
	logger *slog.Logger

	mu     sync.Mutex
	closed bool
	conn   *grpc.ClientConn
	// capabilities is what the driver at the other end can do, nil if it has not been asked since it was connected.
	capabilities *capabilities
	// connections counts the connections that have ended.
	connections int
	// startCtx is the context of start, nil before it, for calls that come without one.
	startCtx context.Context
}

func newDriver(config Config, logger *slog.Logger) *driver {
	return &driver{config: config, logger: logger}
}

func (d *driver) context() (context.Context, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.startCtx == nil {
		return nil, fmt.Errorf("the provisioner of driver %q has not been started", d.config.Name)
	}
	return d.startCtx, nil
}

func (d *driver) connect() (*grpc.ClientConn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, status.Error(codes.Canceled, "the provisioner has been stopped")
	}
	if d.conn != nil {
		return d.conn, nil
	}
	slow := backoff.DefaultConfig
	slow.BaseDelay, slow.MaxDelay = 100*time.Millisecond, maxReconnectDelay
	conn, err := grpc.NewClient("unix://"+d.config.Socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), // some drivers' HTTP/2 refuses the path of a socket
		grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: slow, MinConnectTimeout: maxReconnectDelay}),
		// An answer that is too large must not look as if the driver had refused.
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
		grpc.WithStatsHandler(connObserver{d}),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to driver %q: %w", d.config.Name, err)
	}
	d.conn = conn
	return conn, nil
}

func (d *driver) close() error {
	d.mu.Lock()
	conn := d.conn
	d.closed, d.conn = true, nil
	d.mu.Unlock()
	if conn == nil {
		return nil
	}
	return conn.Close()
}

// start keeps the connection and has it made as soon as the driver's socket appears.
func (d *driver) start(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, d.close()) }()
	d.mu.Lock()
	d.startCtx = ctx
	d.mu.Unlock()
	conn, err := d.connect()
	if err != nil {
		return err
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch for socket of driver %q: %w", d.config.Name, err)
	}
	defer watcher.Close()
	if err := watcher.Add(filepath.Dir(d.config.Socket)); err != nil {
		d.logger.Warn("cannot watch for the driver's socket, will try to connect now and then", "error", err)
	}
	conn.Connect()
	greeted := make(chan error, 1)
	greeting, done := context.WithCancel(ctx)
	go func() { greeted <- d.handshake(greeting) }()
	defer func() {
		done()
		if greeted != nil {
			<-greeted
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-greeted:
			greeted = nil
			if errors.Is(err, errWrongDriver) {
				return err
			}
		case event := <-watcher.Events:
			if event.Name == d.config.Socket && event.Has(fsnotify.Create) {
				conn.ResetConnectBackoff()
			}
		case err := <-watcher.Errors:
			d.logger.Warn("watching for the driver's socket", "error", err)
		}
	}
}

// handshake waits for the driver and logs who it is.
func (d *driver) handshake(ctx context.Context) error {
	able, _, err := d.controller(ctx)
	if err != nil {
		if ctx.Err() == nil {
			d.logger.Warn("cannot ask the driver what it can do; each call will ask again", "error", err)
		}
		return err
	}
	d.logger.Info("driver is there", "version", able.version, "topology", able.topology)
	return nil
}

// controller returns what the driver can do, and a client for it. It waits for the connection. Nothing has been asked of the
// driver that changes anything when it fails.
func (d *driver) controller(ctx context.Context) (*capabilities, csiapi.ControllerClient, error) {
	conn, err := d.connect()
	if err != nil {
		return nil, nil, err
	}
	client := csiapi.NewControllerClient(conn)
	d.mu.Lock()
	able, before := d.capabilities, d.connections
	d.mu.Unlock()
	if able != nil {
		return able, client, nil
	}
	able, err = d.probe(ctx, conn)
	if err != nil {
		return nil, nil, fmt.Errorf("ask driver %q on %q what it can do: %w", d.config.Name, d.config.Socket, err)
	}
	d.mu.Lock()
	if d.connections == before {
		d.capabilities = able
	}
	d.mu.Unlock()
	return able, client, nil
}

func (d *driver) probe(ctx context.Context, conn *grpc.ClientConn) (*capabilities, error) {
	wait := grpc.WaitForReady(true)
	identity := csiapi.NewIdentityClient(conn)
	info, err := identity.GetPluginInfo(ctx, &csiapi.GetPluginInfoRequest{}, wait)
	if err != nil {
		return nil, err
	}
	if info.GetName() != d.config.Name {
		return nil, fmt.Errorf("%w: %q", errWrongDriver, info.GetName())
	}
	ready, err := identity.Probe(ctx, &csiapi.ProbeRequest{}, wait)
	if err != nil {
		return nil, err
	}
	if ready.GetReady() != nil && !ready.GetReady().GetValue() {
		return nil, status.Error(codes.FailedPrecondition, "the driver says that it is not ready yet")
	}
	plugin, err := identity.GetPluginCapabilities(ctx, &csiapi.GetPluginCapabilitiesRequest{}, wait)
	if err != nil {
		return nil, err
	}
	able := &capabilities{version: info.GetVendorVersion(), rpc: map[csiapi.ControllerServiceCapability_RPC_Type]bool{}}
	controller := false
	for _, c := range plugin.GetCapabilities() {
		switch c.GetService().GetType() {
		case csiapi.PluginCapability_Service_CONTROLLER_SERVICE:
			controller = true
		case csiapi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS:
			able.topology = true
		}
	}
	if !controller {
		return able, nil
	}
	rpcs, err := csiapi.NewControllerClient(conn).ControllerGetCapabilities(
		ctx, &csiapi.ControllerGetCapabilitiesRequest{}, wait)
	if err != nil {
		return nil, err
	}
	for _, c := range rpcs.GetCapabilities() {
		able.rpc[c.GetRpc().GetType()] = true
	}
	return able, nil
}

// connObserver has the driver asked anew after each connection: the next may be to a newer version.
type connObserver struct{ driver *driver }

var _ stats.Handler = connObserver{}

// HandleConn implements stats.Handler.
func (c connObserver) HandleConn(_ context.Context, event stats.ConnStats) {
	if _, ok := event.(*stats.ConnEnd); !ok {
		return
	}
	c.driver.mu.Lock()
	defer c.driver.mu.Unlock()
	c.driver.capabilities = nil
	c.driver.connections++
}

// TagConn implements stats.Handler.
func (connObserver) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// TagRPC implements stats.Handler.
func (connObserver) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (connObserver) HandleRPC(context.Context, stats.RPCStats) {}
