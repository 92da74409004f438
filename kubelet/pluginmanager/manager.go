package pluginmanager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/keyed"
)

const (
	// initialBackoff and maxBackoff bound the pause before a socket that could not be registered is tried again.
	initialBackoff = 100 * time.Millisecond
	maxBackoff     = 2 * time.Minute
	// rescanInterval is how often the directory is walked although nothing was heard of it: inotify may be lost.
	rescanInterval = 5 * time.Minute
)

// Plugin is what a plugin says of itself.
type Plugin struct {
	// Type is one of the plugin types of the registration interface, such as "CSIPlugin".
	Type string
	// Name is the plugin's name.
	Name string
	// Endpoint is the socket where the plugin does its work.
	Endpoint string
	// Versions are those of its own interface that it speaks.
	Versions []string
}

// Handler deals with plugins of one type. Calls for one socket come one after the other, for different ones at the
// same time.
type Handler interface {
	// Register takes a plugin on, or takes on anew one whose socket was made anew. An error is told to the plugin,
	// and the plugin is tried again later.
	Register(ctx context.Context, plugin Plugin) error
	// Deregister drops a plugin whose socket is gone. It is tried again after an error.
	Deregister(ctx context.Context, plugin Plugin) error
}

// Config is the values that a Manager runs with.
type Config struct {
	// Dir is where plugins put their sockets, also in directories below. Names that begin with a dot are ignored.
	Dir string
	// InfoTimeout bounds the question what a plugin is. Zero is a second: who does not answer is asked again later.
	InfoTimeout time.Duration
}

// Deps is what a Manager needs. Clock and Logger may be nil.
type Deps struct {
	// Handlers are by type of plugin. A plugin of another type is told that it is not wanted.
	Handlers map[string]Handler
	Clock    clock.Clock
	Logger   *slog.Logger
}

// Manager watches the directory. What it does follows from the sockets that are there and those that it has
// registered, never from what an event says.
type Manager struct {
	config Config
	deps   Deps
	exec   *keyed.Executor
	wake   chan struct{} // has a value when the directory is to be looked at

	mu         sync.Mutex // guards all below
	sockets    map[string]identity
	registered map[string]*registration
}

// identity tells a socket from one that takes its place.
type identity struct {
	inode   uint64
	changed int64
}

// registration is what was done about a socket. plugin.Name is empty if the plugin was refused.
type registration struct {
	socket identity
	plugin Plugin
}

// New makes a Manager.
func New(deps Deps, config Config) (*Manager, error) {
	if config.Dir == "" {
		return nil, errors.New("make plugin manager: Config.Dir is empty")
	}
	if config.InfoTimeout <= 0 {
		config.InfoTimeout = defaultInfoTimeout
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	return &Manager{
		config: config, deps: deps, wake: make(chan struct{}, 1),
		exec:    keyed.New(keyed.Deps{Clock: deps.Clock, Logger: deps.Logger}, keyed.Config{InitialBackoff: initialBackoff, MaxBackoff: maxBackoff}),
		sockets: make(map[string]identity), registered: make(map[string]*registration),
	}, nil
}

// Start makes the directory if it is missing, and registers what appears in it until ctx ends. Plugins stay registered
// then: another process finds their sockets again.
func (m *Manager) Start(ctx context.Context) error {
	if err := os.MkdirAll(m.config.Dir, 0o750); err != nil {
		return fmt.Errorf("make directory of plugins: %w", err)
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch directory of plugins: %w", err)
	}
	defer func() { _ = watcher.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer m.exec.Wait()
	defer cancel()
	next := m.reconcileAll(ctx, watcher)
	for {
		timer := m.deps.Clock.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case event := <-watcher.Events:
			m.deps.Logger.Debug("directory of plugins changed", "event", event.String())
		case err := <-watcher.Errors: // an overflow: what was missed is seen by the walk
			m.deps.Logger.Warn("watching the directory of plugins", "error", err)
		case <-m.wake:
		case <-timer.C():
		}
		timer.Stop()
		next = m.reconcileAll(ctx, watcher)
	}
}

// reconcileAll compares what is there with what is registered, begins what is to be done, and tells after what time to come
// again.
func (m *Manager) reconcileAll(ctx context.Context, watcher *fsnotify.Watcher) time.Duration {
	found, err := listSockets(m.config.Dir, watcher)
	if err != nil {
		m.deps.Logger.Warn("walking the directory of plugins", "error", err)
		return maxBackoff
	}
	m.mu.Lock()
	m.sockets = found
	paths := slices.Collect(maps.Keys(found))
	for path := range m.registered {
		if _, ok := found[path]; !ok {
			paths = append(paths, path)
		}
	}
	paths = slices.DeleteFunc(paths, func(path string) bool { return m.isReconciled(path) })
	m.mu.Unlock()
	next := rescanInterval
	for _, path := range paths {
		key := keyed.Key{Object: path}
		// Failures of one socket are no reason to wait with another that takes its place, or with its end.
		kind := "leave"
		if socket, ok := found[path]; ok {
			kind = fmt.Sprintf("register %d %d", socket.inode, socket.changed)
		}
		err := m.exec.Start(ctx, key, kind, func(ctx context.Context) error { return m.reconcile(ctx, path) },
			func(err error) {
				if err != nil && ctx.Err() == nil {
					m.deps.Logger.Warn("plugin is not registered as its socket wants", "socket", path, "error", err)
				}
				m.poke()
			})
		var backoff *keyed.BackoffError
		if errors.As(err, &backoff) {
			next = min(next, backoff.RetryAfter)
		}
	}
	return next
}

// isReconciled reports whether nothing is to be done about the socket. The caller holds mu.
func (m *Manager) isReconciled(path string) bool {
	want, exists := m.sockets[path]
	have, registered := m.registered[path]
	return exists == registered && (!exists || have.socket == want)
}

func (m *Manager) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// reconcile makes what is registered fit what is there, for one socket.
func (m *Manager) reconcile(ctx context.Context, path string) error {
	m.mu.Lock()
	want, exists := m.sockets[path]
	have := m.registered[path]
	reconciled := m.isReconciled(path)
	m.mu.Unlock()
	if reconciled {
		return nil
	}
	if have != nil && !exists {
		return m.deregister(ctx, path, have)
	}
	return m.register(ctx, path, want)
}

// deregister drops the plugin of a socket that is gone.
func (m *Manager) deregister(ctx context.Context, path string, have *registration) error {
	if have.plugin.Name == "" {
		m.setRegistration(path, nil)
		return nil
	}
	return m.exec.Do(ctx, pluginKey(have.plugin), "deregister", func(ctx context.Context) error {
		if !m.hasMoved(path, have.plugin) {
			if err := m.deps.Handlers[have.plugin.Type].Deregister(ctx, have.plugin); err != nil {
				return fmt.Errorf("deregister plugin %q: %w", have.plugin.Name, err)
			}
			m.deps.Logger.Info("plugin is gone", "plugin", have.plugin.Name, "socket", path)
		}
		m.setRegistration(path, nil)
		return nil
	})
}

// pluginKey is the key under which a plugin comes by one socket and goes with another.
func pluginKey(plugin Plugin) keyed.Key {
	return keyed.Key{Object: plugin.Type + " " + plugin.Name}
}

// hasMoved reports whether the plugin has come back under another socket already.
func (m *Manager) hasMoved(path string, plugin Plugin) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for other, registration := range m.registered {
		same := registration.plugin.Name == plugin.Name && registration.plugin.Type == plugin.Type
		if other != path && same {
			return true
		}
	}
	return false
}

func (m *Manager) setRegistration(path string, registration *registration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if registration == nil {
		delete(m.registered, path)
		return
	}
	m.registered[path] = registration
}
