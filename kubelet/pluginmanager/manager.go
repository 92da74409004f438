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

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/fswatch"
	"github.com/berth-dev/berth/internal/keyed"
	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// initialBackoff and maxBackoff bound the wait before the registration of a socket is retried.
	initialBackoff = 100 * time.Millisecond
	maxBackoff     = 2 * time.Minute
	// rescanInterval is how often the directory is scanned without an event: inotify events may be lost.
	rescanInterval = 5 * time.Minute
	// unwatchedInterval is how often it is scanned while a part of it cannot be watched or read.
	unwatchedInterval = 10 * time.Second
)

// Plugin is what a plugin reports about itself.
type Plugin struct {
	// Type is a plugin type of the registration API, such as "CSIPlugin".
	Type string
	// Name is the plugin's name.
	Name string
	// Endpoint is the socket of the plugin's own API.
	Endpoint string
	// Versions are the supported versions of that API.
	Versions []string
}

// Handler manages plugins of one type. Calls for one socket are sequential, those for different sockets concurrent.
type Handler interface {
	// Register registers a plugin, or registers it again after its socket was created anew. An error is reported to the
	// plugin, and the registration is retried later.
	Register(ctx context.Context, plugin Plugin) error
	// Deregister removes a plugin whose socket is gone. It is retried after an error.
	Deregister(ctx context.Context, plugin Plugin) error
}

// Config are the values of a Manager.
type Config struct {
	// Dir is the directory where plugins create their sockets, or links to them, also in subdirectories. Names that begin with
	// a dot are ignored.
	Dir string
	// InfoTimeout bounds the request for a plugin's information; one second if zero. It is retried later.
	InfoTimeout time.Duration
}

// Deps are what a Manager works with. Clock and Logger may be nil.
type Deps struct {
	// Handlers are the handlers by plugin type. A plugin of another type is rejected.
	Handlers map[string]Handler
	Clock    clock.Clock
	Logger   *slog.Logger
}

// Manager watches the directory. Its actions follow from the sockets that exist and the plugins that are registered,
// never from the content of an event.
type Manager struct {
	config Config
	deps   Deps
	exec   *keyed.Executor
	wake   wakeup.Signal // set when the directory must be scanned

	mu         sync.Mutex               // guards all below
	sockets    map[string]identity      // sockets that exist, by path
	registered map[string]*registration // what was registered, by path
	missed     string                   // why the last scan was not complete; the scanning goroutine's own
}

// identity distinguishes a socket from one that replaces it.
type identity struct {
	inode   uint64
	changed int64
}

// registration is the result for a socket. plugin.Name is empty if the plugin was rejected.
type registration struct {
	socket identity
	plugin Plugin
}

// New returns a Manager.
func New(deps Deps, config Config) (*Manager, error) {
	if config.Dir == "" {
		return nil, errors.New("pluginmanager: Config.Dir is required")
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
		config: config, deps: deps, wake: wakeup.NewSignal(),
		exec:    keyed.New(keyed.Deps{Clock: deps.Clock, Logger: deps.Logger}, keyed.Config{InitialBackoff: initialBackoff, MaxBackoff: maxBackoff}),
		sockets: make(map[string]identity), registered: make(map[string]*registration),
	}, nil
}

// Start creates the directory if necessary and registers the plugins that appear in it until ctx ends. Plugins stay
// registered then: the next process finds their sockets.
func (m *Manager) Start(ctx context.Context) error {
	if err := os.MkdirAll(m.config.Dir, 0o750); err != nil {
		return fmt.Errorf("create plugin directory: %w", err)
	}
	watcher := fswatch.New(m.deps.Logger, "plugins in "+m.config.Dir)
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
		case event := <-watcher.Events():
			m.deps.Logger.Debug("plugin directory changed", "event", event.String())
		case err := <-watcher.Errors(): // an overflow: the scan finds what the lost events reported
			m.deps.Logger.Warn("failed to watch plugin directory", "error", err)
		case <-m.wake.C():
		case <-timer.C():
		}
		timer.Stop()
		next = m.reconcileAll(ctx, watcher)
	}
}

// reconcileAll compares the existing sockets with the registered ones, starts the operations that are needed, and
// returns the time until the next scan.
func (m *Manager) reconcileAll(ctx context.Context, watcher *fswatch.Watcher) time.Duration {
	found, missed := listSockets(m.config.Dir, watcher)
	next := rescanInterval
	if missed != nil { // what was found is registered all the same
		next = unwatchedInterval
		m.logMissed(missed)
	}
	for _, path := range m.toReconcile(found, missed != nil) {
		key := keyed.Key{Object: path}
		// Failures of one socket must not delay another that replaces it, or its removal.
		kind := "deregister"
		if socket, ok := found[path]; ok {
			kind = fmt.Sprintf("register %d %d", socket.inode, socket.changed)
		}
		err := m.exec.Start(ctx, key, kind, func(ctx context.Context) error { return m.reconcile(ctx, path) },
			func(err error) {
				if err != nil && ctx.Err() == nil {
					m.deps.Logger.Warn("failed to reconcile plugin; retrying", "socket", path, "error", err)
				}
				m.wake.Notify()
			})
		var backoff *keyed.BackoffError
		if errors.As(err, &backoff) {
			next = min(next, backoff.RetryAfter)
		}
	}
	return next
}

// toReconcile takes over the sockets that a scan has found, and returns the paths that need an operation. A scan that was incomplete
// gets those added to found that it may have missed.
func (m *Manager) toReconcile(found map[string]identity, incomplete bool) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for path, known := range m.sockets {
		if _, ok := found[path]; ok || !incomplete {
			continue
		}
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) { // its directory cannot be read
			found[path] = known
		}
	}
	m.sockets = found
	paths := slices.Collect(maps.Keys(found))
	for path := range m.registered {
		if _, ok := found[path]; !ok {
			paths = append(paths, path)
		}
	}
	return slices.DeleteFunc(paths, m.isReconciled)
}

// logMissed logs why a scan may have missed sockets, or their events; once as long as the reason stays the same.
func (m *Manager) logMissed(reason error) {
	if text := reason.Error(); text != m.missed {
		m.missed = text
		m.deps.Logger.Warn("cannot watch or read all of the plugin directory; scanning it periodically", "error", reason,
			"period", unwatchedInterval)
	}
}

// isReconciled reports whether the socket needs no operation. The caller holds mu.
func (m *Manager) isReconciled(path string) bool {
	want, exists := m.sockets[path]
	return m.registered[path].isOf(want, exists)
}

// isOf reports whether what was registered at a path is the socket that is there; nil is nothing, and no socket.
func (r *registration) isOf(socket identity, exists bool) bool {
	if r == nil || !exists {
		return r == nil && !exists
	}
	return r.socket == socket
}

// reconcile registers or deregisters the plugin of one socket.
func (m *Manager) reconcile(ctx context.Context, path string) error {
	m.mu.Lock()
	want, exists := m.sockets[path]
	have := m.registered[path]
	m.mu.Unlock()
	if have.isOf(want, exists) {
		return nil
	}
	if have != nil && !exists {
		return m.deregister(ctx, path, have)
	}
	return m.register(ctx, path, want, have)
}

// deregister removes the plugin of a socket that is gone, or belongs to another plugin now.
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
			m.deps.Logger.Info("plugin deregistered", "plugin", have.plugin.Name, "socket", path)
		}
		m.setRegistration(path, nil)
		return nil
	})
}

// pluginKey is the key that serialises registering a plugin on one socket with deregistering it on another.
func pluginKey(plugin Plugin) keyed.Key {
	return keyed.Key{Object: plugin.Type + " " + plugin.Name}
}

// hasMoved reports whether the plugin is registered with another socket already.
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
