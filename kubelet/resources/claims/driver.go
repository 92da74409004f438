package claims

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	draapi "k8s.io/kubelet/pkg/apis/dra/v1"
	dravbeta "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"github.com/berth-dev/berth/internal/unixsock"
	"github.com/berth-dev/berth/kubelet/pluginmanager"
	"github.com/berth-dev/berth/kubelet/resources/delay"
)

// wipeDelay is how long the ResourceSlices of a driver outlive it: it may be restarting.
const wipeDelay = 30 * time.Second

// wipeTimeout bounds the request that deletes ResourceSlices.
const wipeTimeout = 30 * time.Second

// driver is a DRA driver. Its last registration counts: a driver that is replaced registers again before it ends.
type driver struct {
	// sockets are those that it is registered with, the newest last.
	sockets []connection
	client  draapi.DRAPluginClient
	// wipe removes its ResourceSlices some time after its last socket is gone.
	wipe *delay.Call
	// watch has the health of its devices; nil while it has no socket.
	watch *healthWatch
}

type connection struct {
	endpoint string
	conn     *grpc.ClientConn
	client   draapi.DRAPluginClient
}

var _ pluginmanager.Handler = (*Manager)(nil)

// driver returns a driver that is registered.
func (m *Manager) driver(name string) (*driver, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.drivers[name]
	if d == nil || d.client == nil {
		return nil, fmt.Errorf("DRA driver %s is not registered", name)
	}
	return &driver{client: d.client}, nil
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
	c := connection{endpoint: found.Endpoint, conn: conn, client: draapi.NewDRAPluginClient(conn)}
	if service == dravbeta.DRAPluginService {
		c.client = dravbeta.V1Beta1ClientWrapper{DRAPluginClient: dravbeta.NewDRAPluginClient(conn)}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.drivers[found.Name]
	if d == nil {
		d = &driver{}
		m.drivers[found.Name] = d
	}
	if d.wipe != nil {
		d.wipe.Stop()
		d.wipe = nil
	}
	d.remove(found.Endpoint)
	d.sockets = append(d.sockets, c)
	d.client = c.client
	m.watchHealth(found.Name, d)
	m.wake.Notify()
	return nil
}

// Deregister implements pluginmanager.Handler.
func (m *Manager) Deregister(_ context.Context, gone pluginmanager.Plugin) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.drivers[gone.Name]
	if d == nil {
		return nil
	}
	newest := len(d.sockets) > 0 && d.sockets[len(d.sockets)-1].endpoint == gone.Endpoint
	d.remove(gone.Endpoint)
	if newest {
		m.forgetHealth(gone.Name, d)
	}
	if d.client == nil && d.wipe == nil {
		d.wipe = delay.After(m.deps.Clock, wipeDelay, func() { m.wipe(gone.Name, d) })
	}
	return nil
}

// remove closes the connection to a socket.
func (d *driver) remove(endpoint string) {
	d.client = nil
	d.sockets = slices.DeleteFunc(d.sockets, func(c connection) bool {
		if c.endpoint != endpoint {
			return false
		}
		_ = c.conn.Close()
		return true
	})
	if n := len(d.sockets); n > 0 {
		d.client = d.sockets[n-1].client
	}
}

// wipe deletes the ResourceSlices of a driver that has not come back.
func (m *Manager) wipe(name string, gone *driver) {
	m.mu.Lock()
	back := m.drivers[name] != gone || gone.client != nil
	if !back {
		delete(m.drivers, name)
	}
	m.mu.Unlock()
	if back {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), wipeTimeout)
	defer cancel()
	selector := fields.Set{resourceapi.ResourceSliceSelectorNodeName: m.config.NodeName, resourceapi.ResourceSliceSelectorDriver: name}
	err := m.deps.Client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: selector.String()})
	if err != nil {
		m.deps.Logger.Warn("failed to delete the ResourceSlices of a DRA driver that is gone; delete them by hand, or restart the driver",
			"driver", name, "error", err)
		return
	}
	m.deps.Logger.Info("DRA driver is gone; deleted its ResourceSlices", "driver", name)
}

func (m *Manager) closeDrivers() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.drivers {
		if d.wipe != nil {
			d.wipe.Stop()
		}
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
