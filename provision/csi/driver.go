package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/wakeup"
)

// errWrongDriver is the error for a driver with another name.
var errWrongDriver = errors.New("another driver serves on the socket")

// errNotReady is the error for a driver that serves and is still starting.
var errNotReady = status.Error(codes.FailedPrecondition, "the driver reports that it is not ready")

// redialDelay is gRPC's pause between two tries to connect; the dialer makes those that matter.
const redialDelay = 10 * time.Millisecond

// capabilities are those that a driver reports.
type capabilities struct {
	version  string
	topology bool
	// groups: the driver takes group snapshots.
	groups bool
	rpc    map[csiapi.ControllerServiceCapability_RPC_Type]bool
}

// driver is the connection to a driver. The first call opens it.
type driver struct {
	config Config
	logger *slog.Logger
	dialer *dialer

	mu     sync.Mutex
	closed bool
	conn   *grpc.ClientConn
	// capabilities are the driver's, nil before the first probe of this connection.
	capabilities *capabilities
	// connections counts the connections that have ended.
	connections int
	// startCtx is the context of start, for calls without one; nil before start.
	startCtx context.Context

	// available is notified when the driver reports its capabilities on a new connection, ended when a connection ends.
	available wakeup.Broadcast
	ended     wakeup.Signal
}

func newDriver(config Config, logger *slog.Logger) *driver {
	return &driver{
		config: config, logger: logger, dialer: newDialer(config.Socket, clock.RealClock{}), ended: wakeup.NewSignal(),
	}
}

func (d *driver) context() (context.Context, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.startCtx == nil {
		return nil, fmt.Errorf("the provisioner of driver %q is not started", d.config.Name)
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
	conn, err := grpc.NewClient("unix://"+d.config.Socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), // some drivers' HTTP/2 refuses the path of a socket
		grpc.WithIdleTimeout(0),
		grpc.WithContextDialer(d.dialer.dial),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: redialDelay, Multiplier: 1, MaxDelay: redialDelay},
			MinConnectTimeout: 2 * dialDelayMax, // the dialer's pause is part of it
		}),
		// A response that is too large must not look like an error of the driver.
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

// controller returns the driver's capabilities and a client of its controller service. It waits for the connection. If it
// fails, nothing was sent that changes anything.
func (d *driver) controller(ctx context.Context) (*capabilities, csiapi.ControllerClient, error) {
	conn, err := d.connect()
	if err != nil {
		return nil, nil, err
	}
	client := csiapi.NewControllerClient(conn)
	d.mu.Lock()
	capabilities, before := d.capabilities, d.connections
	d.mu.Unlock()
	if capabilities != nil {
		return capabilities, client, nil
	}
	capabilities, err = d.probe(ctx, conn)
	if err != nil {
		return nil, nil, fmt.Errorf("read capabilities of driver %q on %q: %w", d.config.Name, d.config.Socket, err)
	}
	d.keep(capabilities, before)
	return capabilities, client, nil
}

// keep stores the capabilities that were read when so many connections had ended, and notifies that the driver is available.
func (d *driver) keep(capabilities *capabilities, connections int) {
	d.mu.Lock()
	first := d.connections == connections && d.capabilities == nil
	if first {
		d.capabilities = capabilities
	}
	d.mu.Unlock()
	if first {
		d.dialer.proven()
		d.logger.Info("connected to driver", "version", capabilities.version, "topology", capabilities.topology)
		d.available.Notify()
	}
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
		return nil, errNotReady
	}
	plugin, err := identity.GetPluginCapabilities(ctx, &csiapi.GetPluginCapabilitiesRequest{}, wait)
	if err != nil {
		return nil, err
	}
	capabilities := &capabilities{version: info.GetVendorVersion(), rpc: map[csiapi.ControllerServiceCapability_RPC_Type]bool{}}
	controller, groups := false, false
	for _, c := range plugin.GetCapabilities() {
		switch c.GetService().GetType() {
		case csiapi.PluginCapability_Service_CONTROLLER_SERVICE:
			controller = true
		case csiapi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS:
			capabilities.topology = true
		case csiapi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE:
			groups = true
		}
	}
	if groups {
		if capabilities.groups, err = takesGroups(ctx, conn); err != nil {
			return nil, err
		}
	}
	if !controller {
		return capabilities, nil
	}
	rpcs, err := csiapi.NewControllerClient(conn).ControllerGetCapabilities(
		ctx, &csiapi.ControllerGetCapabilitiesRequest{}, wait)
	if err != nil {
		return nil, err
	}
	for _, c := range rpcs.GetCapabilities() {
		capabilities.rpc[c.GetRpc().GetType()] = true
	}
	return capabilities, nil
}

// connObserver drops the capabilities when a connection ends: the next one may be to a newer version.
type connObserver struct{ driver *driver }

var _ stats.Handler = connObserver{}

// HandleConn implements stats.Handler.
func (c connObserver) HandleConn(_ context.Context, event stats.ConnStats) {
	if _, ok := event.(*stats.ConnEnd); !ok {
		return
	}
	c.driver.mu.Lock()
	c.driver.capabilities = nil
	c.driver.connections++
	c.driver.mu.Unlock()
	c.driver.ended.Notify()
}

// TagConn implements stats.Handler.
func (connObserver) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// TagRPC implements stats.Handler.
func (connObserver) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (connObserver) HandleRPC(context.Context, stats.RPCStats) {}
