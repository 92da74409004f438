package pluginmanager

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berth-dev/berth/internal/fswatch"
	"github.com/berth-dev/berth/internal/unixsock"
)

const (
	// defaultInfoTimeout is the default of Config.InfoTimeout.
	defaultInfoTimeout = time.Second
	// registerTimeout bounds the registration of a plugin, including the notification of the plugin.
	registerTimeout = 30 * time.Second
	// redialMin and redialMax bound the wait between two attempts to connect to a plugin.
	redialMin = 2 * time.Millisecond
	redialMax = 100 * time.Millisecond
)

// listSockets returns the sockets in dir and below, and links to sockets, and watches all directories. Watching a directory twice does no
// harm. missed says which directories could not be read or watched; the sockets of the others are found.
func listSockets(dir string, watcher *fswatch.Watcher) (found map[string]identity, missed error) {
	found = make(map[string]identity)
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err != nil {
			missed = errors.Join(missed, fmt.Errorf("read %q: %w", path, err))
			return nil // of a directory: it has no entries
		}
		if path != dir && strings.HasPrefix(entry.Name(), ".") {
			if entry.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if watched := dirToWatch(path, entry); watched != "" {
			// Before reading its entries, so that none is missed.
			if err := watcher.Add(watched); err != nil && !errors.Is(err, os.ErrNotExist) {
				missed = errors.Join(missed, fmt.Errorf("watch %q: %w", watched, err))
			}
		}
		if socket, ok := socketAt(path, entry); ok {
			found[path] = socket
		}
		return nil
	})
	return found, missed
}

// dirToWatch returns the directory whose events say that the entry has changed, "" if that is its own: a directory, or for a link that of
// what it leads to, because a plugin may make its socket elsewhere.
func dirToWatch(path string, entry fs.DirEntry) string {
	if entry.IsDir() {
		return path
	}
	if entry.Type() != fs.ModeSymlink {
		return ""
	}
	target, err := os.Readlink(path)
	if err != nil {
		return "" // removed meanwhile
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(path), target)
	}
	return filepath.Dir(target)
}

// socketAt returns the socket that the entry is, or leads to as a link.
func socketAt(path string, entry fs.DirEntry) (identity, bool) {
	if kind := entry.Type(); kind != fs.ModeSocket && kind != fs.ModeSymlink {
		return identity{}, false
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return identity{}, false // removed meanwhile, or a link to something else
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return identity{}, false
	}
	return identity{inode: stat.Ino, changed: stat.Ctim.Nano()}, true
}

// register performs the handshake with the plugin of a socket and stores the result. A plugin that is rejected is
// notified of it; that is not an error, and is stored as a registration without a name. have is what was registered at the
// path before, nil if nothing: another plugin is deregistered.
func (m *Manager) register(ctx context.Context, path string, socket identity, have *registration) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	dial := func(ctx context.Context, _ string) (net.Conn, error) { return unixsock.Dial(ctx, path) }
	// A socket may appear a moment before the plugin listens on it: that is not a failure yet.
	connectBackoff := backoff.Config{BaseDelay: redialMin, Multiplier: 2, MaxDelay: redialMax}
	conn, err := grpc.NewClient("passthrough:///plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), grpc.WithContextDialer(dial),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: connectBackoff, MinConnectTimeout: m.config.InfoTimeout}))
	if err != nil {
		return fmt.Errorf("connect to plugin: %w", err)
	}
	defer func() { _ = conn.Close() }()
	client := registerapi.NewRegistrationClient(conn)
	plugin, err := m.getInfo(ctx, client)
	if err != nil {
		return err
	}
	if have != nil && pluginKey(have.plugin) != pluginKey(plugin) {
		if err := m.deregister(ctx, path, have); err != nil {
			return err
		}
	}
	return m.exec.Do(ctx, pluginKey(plugin), "register", func(ctx context.Context) error {
		return m.registerAndNotify(ctx, client, path, &registration{socket: socket, plugin: plugin})
	})
}

// registerAndNotify passes a plugin to its handler and notifies the plugin of the result.
func (m *Manager) registerAndNotify(
	ctx context.Context, client registerapi.RegistrationClient, path string, registration *registration,
) error {
	plugin := registration.plugin
	err := m.handOver(ctx, plugin)
	status := &registerapi.RegistrationStatus{PluginRegistered: err == nil}
	if err != nil {
		status.Error = err.Error()
	}
	_, notifyErr := client.NotifyRegistrationStatus(ctx, status)
	var rejected *rejectedError
	if errors.As(err, &rejected) {
		m.deps.Logger.Warn("plugin rejected", "socket", path, "error", err)
		registration.plugin = Plugin{}
		m.setRegistration(path, registration)
		return nil
	}
	if err != nil {
		return err
	}
	if notifyErr != nil {
		// It is registered all the same: it must be deregistered when its socket goes, and notified again otherwise.
		registration.socket = identity{}
		m.setRegistration(path, registration)
		return fmt.Errorf("notify plugin %q of its registration: %w", plugin.Name, notifyErr)
	}
	m.deps.Logger.Info("plugin registered", "plugin", plugin.Name, "type", plugin.Type, "endpoint", plugin.Endpoint)
	m.setRegistration(path, registration)
	return nil
}

// getInfo asks a plugin for its type, name and endpoint.
func (m *Manager) getInfo(ctx context.Context, client registerapi.RegistrationClient) (Plugin, error) {
	ctx, cancel := context.WithTimeout(ctx, m.config.InfoTimeout)
	defer cancel()
	info, err := client.GetInfo(ctx, &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return Plugin{}, fmt.Errorf("get plugin info: %w", err)
	}
	return Plugin{
		Type: info.GetType(), Name: info.GetName(), Endpoint: info.GetEndpoint(), Versions: info.GetSupportedVersions(),
	}, nil
}

// rejectedError means that a plugin will not be registered, however often it is tried.
type rejectedError struct{ reason string }

// Error implements error.
func (e *rejectedError) Error() string { return e.reason }

// handOver passes a plugin to the handler of its type.
func (m *Manager) handOver(ctx context.Context, plugin Plugin) error {
	handler, ok := m.deps.Handlers[plugin.Type]
	if !ok {
		return &rejectedError{fmt.Sprintf("plugins of type %q are not supported by this kubelet", plugin.Type)}
	}
	if plugin.Name == "" {
		return &rejectedError{"the plugin has no name"}
	}
	if err := handler.Register(ctx, plugin); err != nil {
		return fmt.Errorf("register plugin %q: %w", plugin.Name, err)
	}
	return nil
}
