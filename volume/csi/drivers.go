package csi

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/berth-dev/berth/internal/unixsock"
	"github.com/berth-dev/berth/timeline"
)

const (
	// callTimeout bounds one call of a driver.
	callTimeout = 2 * time.Minute
	// dialTimeout bounds how long a driver may take until it listens and returns its capabilities.
	dialTimeout = 5 * time.Second
	// redialMin and redialMax bound the wait between two attempts to connect.
	redialMin = 10 * time.Millisecond
	redialMax = 2 * time.Second
)

// driverName matches the names that the CSI specification allows.
var driverName = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.-]{0,61}[a-zA-Z0-9])?$`)

// CheckDriverName rejects a name that is not allowed for drivers. Names become names of directories.
func CheckDriverName(name string) error {
	if !driverName.MatchString(name) || strings.Contains(name, "..") {
		return fmt.Errorf("use csi driver %q: its name is not a domain name of at most 63 characters", name)
	}
	return nil
}

// Driver is a connection to the node service of one driver. It is safe for concurrent use.
type Driver struct {
	// Name is the driver's name.
	Name string
	// Endpoint is the path of its socket.
	Endpoint string

	node csipb.NodeClient
	conn *grpc.ClientConn
	caps map[csipb.NodeServiceCapability_RPC_Type]bool
}

// Dial connects to a driver and reads its capabilities. CallMetrics.DialOption, as an extra option, measures its calls.
// The caller owns the Driver until it is added to Drivers.
func Dial(ctx context.Context, name, endpoint string, extra ...grpc.DialOption) (*Driver, error) {
	if err := CheckDriverName(name); err != nil {
		return nil, err
	}
	endpoint = strings.TrimPrefix(endpoint, "unix://")
	dial := func(ctx context.Context, _ string) (net.Conn, error) { return unixsock.Dial(ctx, endpoint) }
	backoffConfig := backoff.DefaultConfig
	backoffConfig.BaseDelay, backoffConfig.MaxDelay = redialMin, redialMax
	conn, err := grpc.NewClient("passthrough:///"+name, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"), grpc.WithContextDialer(dial),
		grpc.WithIdleTimeout(0), grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoffConfig, MinConnectTimeout: time.Second}),
	}, extra...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to csi driver %q at %q: %w", name, endpoint, err)
	}
	d := &Driver{Name: name, Endpoint: endpoint, conn: conn, node: csipb.NewNodeClient(conn)}
	// It may have registered a moment before it listens.
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	response, err := d.node.NodeGetCapabilities(ctx, &csipb.NodeGetCapabilitiesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("get capabilities of csi driver %q at %q: %w", name, endpoint, driverError{err})
	}
	d.caps = make(map[csipb.NodeServiceCapability_RPC_Type]bool)
	for _, capability := range response.GetCapabilities() {
		d.caps[capability.GetRpc().GetType()] = true
	}
	return d, nil
}

// NodeInfo returns the driver's name of this node, its topology and its volume limit.
func (d *Driver) NodeInfo(ctx context.Context) (*csipb.NodeGetInfoResponse, error) {
	response, err := d.node.NodeGetInfo(ctx, &csipb.NodeGetInfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("get node info of csi driver %q: %w", d.Name, driverError{err})
	}
	if response.GetNodeId() == "" {
		return nil, fmt.Errorf("get node info of csi driver %q: the node id is empty", d.Name)
	}
	return response, nil
}

// Close closes the connection. Running calls fail.
func (d *Driver) Close() error { return d.conn.Close() }

func (d *Driver) can(capability csipb.NodeServiceCapability_RPC_Type) bool { return d.caps[capability] }

func (d *Driver) stages() bool { return d.can(csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) }

// NotRegisteredError means that no driver of this name is registered on the node.
type NotRegisteredError struct{ Driver string }

// Error implements error.
func (e *NotRegisteredError) Error() string {
	return fmt.Sprintf("driver name %s not found in the list of registered CSI drivers; "+
		"check that the driver's pod runs on this node", e.Driver)
}

// Drivers holds the drivers that are registered on this node, and owns them. It is safe for concurrent use.
type Drivers struct {
	mu          sync.Mutex // guards all below
	byName      map[string]*Driver
	subscribers map[int]func()
	next        int
}

// NewDrivers returns a Drivers without drivers.
func NewDrivers() *Drivers {
	return &Drivers{byName: make(map[string]*Driver), subscribers: make(map[int]func())}
}

// Get returns the driver of this name, or a *NotRegisteredError.
func (d *Drivers) Get(name string) (*Driver, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if driver, ok := d.byName[name]; ok {
		return driver, nil
	}
	return nil, timeline.WithReason(&NotRegisteredError{Driver: name}, "DriverNotRegistered",
		"check that the node plugin of driver "+name+" runs on this node and registers with the kubelet")
}

// Add registers a driver. It replaces and closes a registered driver of the same name.
func (d *Drivers) Add(driver *Driver) {
	d.mu.Lock()
	before := d.byName[driver.Name]
	d.byName[driver.Name] = driver
	d.mu.Unlock()
	if before != nil && before != driver {
		_ = before.Close()
	}
	d.notify()
}

// notify calls the subscribers.
func (d *Drivers) notify() {
	d.mu.Lock()
	subscribers := make([]func(), 0, len(d.subscribers))
	for _, subscriber := range d.subscribers {
		subscribers = append(subscribers, subscriber)
	}
	d.mu.Unlock()
	for _, subscriber := range subscribers {
		subscriber()
	}
}

// Remove removes and closes the driver of this name if it has this endpoint. It reports whether it did.
func (d *Drivers) Remove(name, endpoint string) bool {
	endpoint = strings.TrimPrefix(endpoint, "unix://")
	d.mu.Lock()
	driver, ok := d.byName[name]
	if !ok || driver.Endpoint != endpoint {
		d.mu.Unlock()
		return false
	}
	delete(d.byName, name)
	d.mu.Unlock()
	_ = driver.Close()
	return true
}

// Subscribe calls changed after a driver was added or a CSIDriver object changed, until cancel is called: volumes that
// could not be set up before may be now. changed must not block.
func (d *Drivers) Subscribe(changed func()) (cancel func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := d.next
	d.next++
	d.subscribers[id] = changed
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.subscribers, id)
	}
}

// Close removes and closes all drivers.
func (d *Drivers) Close() {
	d.mu.Lock()
	drivers := d.byName
	d.byName = make(map[string]*Driver)
	d.mu.Unlock()
	for _, driver := range drivers {
		_ = driver.Close()
	}
}
