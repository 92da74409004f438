package devices

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/unixsock"
)

// connectTimeout bounds the first requests to a plugin, which its registration waits for.
const connectTimeout = 10 * time.Second

// plugin is a connection to a device plugin.
type plugin struct {
	resource, socket string
	conn             *grpc.ClientConn
	client           pluginapi.DevicePluginClient
	options          *pluginapi.DevicePluginOptions
	cancel           context.CancelFunc // ends watching its devices
}

// connect connects to the plugin at the socket and asks for its options.
func connect(ctx context.Context, resource, socket string) (*plugin, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+resource, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return unixsock.Dial(ctx, socket) }))
	if err != nil {
		return nil, fmt.Errorf("connect to device plugin %s at %s: %w", resource, socket, err)
	}
	p := &plugin{resource: resource, socket: socket, conn: conn, client: pluginapi.NewDevicePluginClient(conn)}
	if p.options, err = p.client.GetDevicePluginOptions(ctx, &pluginapi.Empty{}, grpc.WaitForReady(true)); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("failed to get device plugin options of %s at %s: %w", resource, socket, err)
	}
	return p, nil
}

// register makes the plugin that of its resource, in place of the one before.
func (m *Manager) register(ctx context.Context, resource, socket string) error {
	m.deps.Metrics.DeviceRegistrations.WithLabelValues(resource).Inc()
	p, err := connect(ctx, resource, socket)
	if err != nil {
		m.deps.Logger.Warn("failed to register device plugin", "resource", resource, "error", err)
		return err
	}
	if !m.connected(p) {
		_ = p.conn.Close()
		return fmt.Errorf("register device plugin %s: the kubelet is stopping", resource)
	}
	m.deps.Logger.Info("device plugin registered", "resource", resource, "socket", socket)
	return nil
}

// connected makes a plugin that of its resource, unless the manager is stopping.
func (m *Manager) connected(p *plugin) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running == nil || m.running.Err() != nil {
		return false
	}
	watching, cancel := context.WithCancel(m.running)
	p.cancel = cancel
	of := m.pools[p.resource]
	if of == nil {
		of = &pool{devices: map[string]device{}}
		m.pools[p.resource] = of
	}
	if of.removal != nil {
		of.removal.Stop()
	}
	if of.plugin != nil {
		of.plugin.cancel()
	}
	m.preparing[p.resource] = p.options.GetPreStartRequired()
	of.plugin = p // its first list replaces the devices that are known
	delete(m.removed, p.resource)
	m.connections.Go(contain.Guard("devices.watch", p.resource, func() { m.watch(watching, p) }))
	return true
}

// watch takes the devices of a plugin until the connection ends.
func (m *Manager) watch(ctx context.Context, p *plugin) {
	defer func() { _ = p.conn.Close() }()
	defer m.disconnected(p)
	stream, err := p.client.ListAndWatch(ctx, &pluginapi.Empty{})
	for err == nil {
		var list *pluginapi.ListAndWatchResponse
		if list, err = stream.Recv(); err == nil {
			m.update(p.resource, p, list.Devices)
		}
	}
	if ctx.Err() == nil {
		m.deps.Logger.Warn("device plugin is gone; its devices are unhealthy until it registers again", "resource", p.resource, "error", err)
	}
}

// disconnected records that the plugin is gone: its devices are not healthy, and are forgotten some time later.
func (m *Manager) disconnected(p *plugin) {
	p.cancel()
	if pods, ok := m.markGone(p); ok {
		m.saveLogged()
		m.notify(pods)
	}
}

// markGone makes the devices of a plugin unhealthy, and returns the Pods that have one; not ok if there is nothing to do.
func (m *Manager) markGone(p *plugin) (pods []types.UID, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.pools[p.resource]
	if of == nil || of.plugin != p {
		return nil, false
	}
	before := of.devices
	of.plugin, of.devices = nil, map[string]device{}
	for id, d := range before {
		of.devices[id] = device{nodes: d.nodes}
	}
	if m.running.Err() != nil {
		return nil, false
	}
	m.scheduleRemoval(p.resource)
	return m.affected(p.resource, before, of.devices), true
}

// connection returns the plugin of a resource, nil if none is connected.
func (m *Manager) connection(resource string) *plugin {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.pools[resource]; p != nil {
		return p.plugin
	}
	return nil
}
