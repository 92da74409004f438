package claims

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	draapi "k8s.io/kubelet/pkg/apis/dra/v1"
	dravbeta "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/unixsock"
	"github.com/berth-dev/berth/kubelet/pluginmanager"
)

// driver is a DRA driver. Of its sockets the last one that responds counts: a driver that is replaced registers again before it ends.
type driver struct {
	// sockets are those that it is registered with, the newest last.
	sockets []*connection
	// cancelRemoval cancels the removal of its ResourceSlices; nil while a socket responds, and after the removal.
	cancelRemoval context.CancelFunc
	// watch has the health of its devices; nil while it has no socket.
	watch *healthWatch
}

// connection is the connection to one socket of a driver.
type connection struct {
	endpoint string
	conn     *grpc.ClientConn
	client   draapi.DRAPluginClient
	// responds says that the connection is established.
	responds bool
}

// newest returns the newest socket, nil if there is none.
func (d *driver) newest() *connection {
	if len(d.sockets) == 0 {
		return nil
	}
	return d.sockets[len(d.sockets)-1]
}

// preferred returns the newest socket that responds, or else the newest one; nil if there is none.
func (d *driver) preferred() *connection {
	for _, c := range slices.Backward(d.sockets) {
		if c.responds {
			return c
		}
	}
	return d.newest()
}

var _ pluginmanager.Handler = (*Manager)(nil)

// client returns the client of a driver that is registered.
func (m *Manager) client(name string) (draapi.DRAPluginClient, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.drivers[name]; d != nil {
		if c := d.preferred(); c != nil {
			return c.client, nil
		}
	}
	return nil, fmt.Errorf("DRA driver %s is not registered", name)
}

// Register implements pluginmanager.Handler.
func (m *Manager) Register(_ context.Context, found pluginmanager.Plugin) error {
	service := ""
	for _, known := range []string{draapi.DRAPluginService, dravbeta.DRAPluginService} {
		if service == "" && slices.Contains(found.Versions, known) {
			service = known
		}
	}
	if service == "" {
		return fmt.Errorf("register DRA driver %s: it has none of the services %s and %s, but %s", found.Name, draapi.DRAPluginService,
			dravbeta.DRAPluginService, strings.Join(found.Versions, ", "))
	}
	conn, err := grpc.NewClient("passthrough:///"+found.Name, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(m.metrics.interceptor(found.Name)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return unixsock.Dial(ctx, found.Endpoint) }))
	if err != nil {
		return fmt.Errorf("connect to DRA driver %s at %s: %w", found.Name, found.Endpoint, err)
	}
	c := &connection{endpoint: found.Endpoint, conn: conn, client: draapi.NewDRAPluginClient(conn)}
	if service == dravbeta.DRAPluginService {
		c.client = dravbeta.V1Beta1ClientWrapper{DRAPluginClient: dravbeta.NewDRAPluginClient(conn)}
	}
	return m.add(found.Name, c)
}

// add makes a connection the newest of a driver.
func (m *Manager) add(name string, c *connection) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running != nil && m.running.Err() != nil {
		_ = c.conn.Close()
		return fmt.Errorf("register DRA driver %s: the kubelet is stopping", name)
	}
	d := m.drivers[name]
	if d == nil {
		d = &driver{}
		m.drivers[name] = d
	}
	d.remove(c.endpoint)
	d.sockets = append(d.sockets, c)
	m.watches.Go(contain.Guard("claims.connection", name, func() { m.watchConnection(name, d, c) }))
	m.removeSlicesUnlessResponding(name, d)
	m.watchHealth(name, d)
	m.wake.Notify()
	return nil
}

// watchConnection keeps the connection to a socket established, and records whether it is, until it is closed: a driver that has ended
// may still be registered.
func (m *Manager) watchConnection(name string, d *driver, c *connection) {
	for state := c.conn.GetState(); state != connectivity.Shutdown; state = c.conn.GetState() {
		if state == connectivity.Idle {
			c.conn.Connect()
		}
		m.setResponds(name, d, c, state == connectivity.Ready)
		c.conn.WaitForStateChange(context.Background(), state) // closing it is a change
	}
}

func (m *Manager) setResponds(name string, d *driver, c *connection, responds bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if responds == c.responds {
		return
	}
	c.responds = responds
	m.deps.Logger.Info("connection to a DRA driver changed", "driver", name, "socket", c.endpoint, "responds", responds)
	m.removeSlicesUnlessResponding(name, d)
}

// Deregister implements pluginmanager.Handler.
func (m *Manager) Deregister(_ context.Context, gone pluginmanager.Plugin) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.drivers[gone.Name]
	if d == nil {
		return nil
	}
	newest := d.newest()
	d.remove(gone.Endpoint)
	if newest != nil && newest.endpoint == gone.Endpoint {
		m.forgetHealth(gone.Name, d)
	}
	m.removeSlicesUnlessResponding(gone.Name, d)
	return nil
}

// remove closes the connection to a socket.
func (d *driver) remove(endpoint string) {
	d.sockets = slices.DeleteFunc(d.sockets, func(c *connection) bool {
		if c.endpoint != endpoint {
			return false
		}
		_ = c.conn.Close()
		return true
	})
}

func (m *Manager) closeDrivers() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.drivers {
		if d.watch != nil {
			d.watch.stop()
		}
		for _, c := range d.sockets {
			_ = c.conn.Close()
		}
	}
}

// interceptor measures requests to a driver.
func (m *metrics) interceptor(driver string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		start := time.Now()
		err := invoke(ctx, method, request, reply, conn, options...)
		m.calls.WithLabelValues(driver, method, status.Code(err).String()).Observe(time.Since(start).Seconds())
		return err
	}
}
