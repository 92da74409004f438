package devices

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/resourcename"
	"github.com/berth-dev/berth/internal/unixsock"
	"github.com/berth-dev/berth/kubelet/pluginmanager"
	"github.com/berth-dev/berth/kubelet/resources/delay"
)

var _ pluginmanager.Handler = (*Manager)(nil)

// Start serves the socket at which device plugins register until ctx ends, and closes the connections to them then: they register
// again with the next process, when its socket appears.
func (m *Manager) Start(ctx context.Context) error {
	running, cancel := context.WithCancel(ctx)
	defer m.stopRemovals()
	defer m.connections.Wait()
	defer cancel()
	listener, err := m.listen(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.running = running
	m.mu.Unlock()
	server := grpc.NewServer(contain.ServerOptions("device plugin registration")...)
	pluginapi.RegisterRegistrationServer(server, &registrar{m: m})
	if err := contain.Serve(ctx, "devices.serve", server, listener); err != nil {
		return fmt.Errorf("serve the registration of device plugins: %w", err)
	}
	return nil
}

// stopRemovals cancels the removals of resources, which the next process schedules anew, and waits for those that have begun.
func (m *Manager) stopRemovals() {
	m.mu.Lock()
	var calls []*delay.Call
	for _, p := range m.pools {
		if p.removal != nil {
			calls = append(calls, p.removal)
		}
	}
	m.mu.Unlock()
	for _, call := range calls {
		call.Stop()
		call.Wait()
	}
	m.removing.Wait()
}

// listen removes the sockets that an earlier process and its plugins have left, by which plugins notice that they have to register
// again, and listens. Other files in the directory are left alone: plugins may keep some there.
func (m *Manager) listen(ctx context.Context) (net.Listener, error) {
	if err := os.MkdirAll(m.dir, 0o750); err != nil {
		return nil, fmt.Errorf("create the directory of device plugins: %w", err)
	}
	if err := atomicfile.Clean(m.dir); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		return nil, fmt.Errorf("read the directory of device plugins: %w", err)
	}
	var sockets []string // also links to one, so that all are found before any is removed
	for _, e := range entries {
		path := filepath.Join(m.dir, e.Name())
		if info, err := os.Stat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
			sockets = append(sockets, path)
		}
	}
	for _, path := range sockets {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("remove what is left of a device plugin: %w", err)
		}
	}
	return unixsock.Replace(ctx, filepath.Join(m.dir, socketName))
}

// registrar implements the registration service.
type registrar struct {
	pluginapi.UnsafeRegistrationServer
	m *Manager
}

// Register implements pluginapi.RegistrationServer.
func (r *registrar) Register(ctx context.Context, request *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if err := check(request.ResourceName, []string{request.Version}); err != nil {
		return nil, err
	}
	if name := request.Endpoint; !filepath.IsLocal(name) || filepath.Clean(name) == "." {
		return nil, fmt.Errorf("register device plugin %s: endpoint %q: want the path of a socket below %s", request.ResourceName, name, r.m.dir)
	}
	return &pluginapi.Empty{}, r.m.register(ctx, request.ResourceName, filepath.Join(r.m.dir, request.Endpoint))
}

// check rejects a plugin of another version of the API, or with a name that no resource can have.
func check(resource string, versions []string) error {
	if !slices.Contains(versions, pluginapi.Version) {
		return fmt.Errorf("register device plugin %s: requested API version %q is not supported by kubelet: want %s", resource,
			strings.Join(versions, ", "), pluginapi.Version)
	}
	if !resourcename.IsExtended(corev1.ResourceName(resource)) {
		return fmt.Errorf("register device plugin %q: invalid name of resource: want DOMAIN/NAME, and another domain than kubernetes.io", resource)
	}
	return nil
}

// Register implements pluginmanager.Handler, for plugins that create their socket in the directory of all kinds of plugins.
func (m *Manager) Register(ctx context.Context, found pluginmanager.Plugin) error {
	if err := check(found.Name, found.Versions); err != nil {
		return err
	}
	return m.register(ctx, found.Name, found.Endpoint)
}

// Deregister implements pluginmanager.Handler.
func (m *Manager) Deregister(_ context.Context, gone pluginmanager.Plugin) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.pools[gone.Name]; p != nil && p.plugin != nil && p.plugin.socket == gone.Endpoint {
		p.plugin.cancel()
	}
	return nil
}
