package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sys/unix"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// readHeaderTimeout bounds how long a client may take to send its request header.
	readHeaderTimeout = 32 * time.Second
	// idleTimeout closes unused connections.
	idleTimeout = 90 * time.Second
	// stopTimeout is how long requests may continue after the server is stopped.
	stopTimeout = 2 * time.Second
)

// ErrNotFound is wrapped by a Host's errors about a Pod or container that does not exist.
var ErrNotFound = errors.New("not found")

// Config are the values of a Server. It has many fields because each part of the API can be turned off.
type Config struct {
	NodeName string // whose subresources requests are authorized for
	// Addresses are the addresses to listen on, as host:port. Port 0 means a free one.
	Addresses []string
	// CertFile and KeyFile contain the serving certificate and key, in PEM form. They are read again when replaced.
	CertFile, KeyFile string
	// TLS, if set, limits the versions, ciphers and key exchanges of connections; its other fields are ignored.
	TLS *tls.Config
	// AllowMissingCert allows starting before those files exist; handshakes fail until they do.
	AllowMissingCert bool
	// HealthzAddress is a host:port where only /healthz is served, without TLS and to anyone, for local supervisors.
	// ReadOnlyAddress is one where also metrics, statistics and the list of Pods are. Empty means none.
	HealthzAddress, ReadOnlyAddress string
	// StreamIdleTimeout closes a stream to a container that transfers nothing for that long; never if zero.
	StreamIdleTimeout time.Duration
	// MaxStreams is how many exec, attach and port-forward streams there may be at once, and MaxPodStreams how many of one Pod;
	// DefaultMaxStreams and DefaultMaxPodStreams if zero. Further requests get status 429.
	MaxStreams, MaxPodStreams int
	// DisableDebugging disables exec, attach, portForward, run, containerLogs, runningpods, logs and pprof (status
	// 405).
	DisableDebugging bool
	// LogDir is the directory whose files are served at /logs/. Empty means none.
	LogDir string
	// LogQuery enables queries of service logs at /logs/ (?query=NAME) with the program Journalctl; "journalctl" if
	// empty.
	LogQuery   bool
	Journalctl string
	// Profiling serves Go's profiler at /debug/pprof/. With ContentionProfiling the profile "block", which shows where
	// goroutines wait for each other, is collected while the server runs; that costs some time at each wait of the
	// process.
	Profiling, ContentionProfiling bool
	// DebugFlags enables setting the log level at /debug/flags/v.
	DebugFlags bool
}

func (c Config) validate() error {
	switch {
	case c.NodeName == "":
		return errors.New("server: Config.NodeName is required")
	case len(c.Addresses) == 0 && c.HealthzAddress == "" && c.ReadOnlyAddress == "":
		return errors.New("server: Config.Addresses is required: want at least one host:port")
	case len(c.Addresses) > 0 && (c.CertFile == "" || c.KeyFile == ""):
		return errors.New("server: Config.CertFile and Config.KeyFile are required: " +
			"the server supports only TLS")
	}
	for _, address := range c.Addresses {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return fmt.Errorf("server: Config.Addresses %q: %w", address, err)
		}
	}
	for name, address := range map[string]string{"HealthzAddress": c.HealthzAddress, "ReadOnlyAddress": c.ReadOnlyAddress} {
		if _, _, err := net.SplitHostPort(address); address != "" && err != nil {
			return fmt.Errorf("server: Config.%s %q: %w", name, address, err)
		}
	}
	return nil
}

// Deps are what a Server works with. Host and Auth are required.
type Deps struct {
	Host Host
	Auth Auth
	// Metrics and ProbeMetrics are served at /metrics and /metrics/probes.
	Metrics, ProbeMetrics prometheus.Gatherer
	// Processes serve the metrics of other processes of the node, by their names, at /metrics/processes/NAME.
	Processes map[string]http.Handler
	// Stats is served at /stats/summary, /metrics/resource and /metrics/cadvisor.
	Stats Stats
	// Configz returns the effective configuration by component name, for /configz.
	Configz func() map[string]any
	// RequestMetrics measures the requests.
	RequestMetrics *RequestMetrics
	// Flags are the command line's flags by name, for /flagz, which is not served without them.
	Flags map[string]string
	// TracerProvider makes a span for each request; nil makes none.
	TracerProvider trace.TracerProvider
	// Checks are the checks of /healthz besides ping.
	Checks []healthz.HealthChecker
	Logger *slog.Logger
}

// Server is the kubelet's HTTPS server.
type Server struct {
	config   Config
	deps     Deps
	logger   *slog.Logger
	keyPair  *keyPair
	handler  http.Handler
	ready    chan struct{}
	handlers sync.WaitGroup // requests in progress

	addressesChanged wakeup.Signal // set when addresses has changed

	mu        sync.Mutex // guards below
	addresses []string   // addresses to listen on, without HealthzAddress
	listeners []listener
	conns     map[net.Conn]struct{} // all open connections, including hijacked ones
	strangers *strangers            // those without an authenticated request
	streams   *streamLimit
}

// New returns a Server. It reads no file and opens no port before Start.
func New(deps Deps, config Config) (*Server, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	switch {
	case deps.Host == nil:
		return nil, errors.New("server: Deps.Host is required")
	case len(config.Addresses) > 0 && deps.Auth.Authenticator == nil:
		return nil, errors.New("server: Deps.Auth.Authenticator is required")
	case len(config.Addresses) > 0 && deps.Auth.Authorizer == nil:
		return nil, errors.New("server: Deps.Auth.Authorizer is required")
	}
	if config.Journalctl == "" {
		config.Journalctl = "journalctl"
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		config:           config,
		deps:             deps,
		logger:           deps.Logger,
		keyPair:          &keyPair{certFile: config.CertFile, keyFile: config.KeyFile, logger: deps.Logger},
		ready:            make(chan struct{}),
		addressesChanged: wakeup.NewSignal(), addresses: slices.Clone(config.Addresses),
		conns: make(map[net.Conn]struct{}), strangers: newStrangers(),
		streams: newStreamLimit(cmp.Or(config.MaxStreams, DefaultMaxStreams), cmp.Or(config.MaxPodStreams, DefaultMaxPodStreams)),
	}
	s.handler = s.trackHandlers(s.traced(deps.RequestMetrics.Instrument("readwrite", deps.Auth.authorize(config.NodeName, deps.Logger, s.routes()))))
	return s, nil
}

// Ready returns a channel that is closed when the server listens on all its addresses.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Start serves until ctx ends. Then it waits briefly for requests in progress, closes the remaining connections and
// returns when all handlers have ended.
func (s *Server) Start(ctx context.Context) error {
	if s.config.ContentionProfiling && s.config.Profiling && !s.config.DisableDebugging {
		runtime.SetBlockProfileRate(1) // every wait, as upstream does
		defer runtime.SetBlockProfileRate(0)
	}
	if _, err := s.keyPair.get(); err != nil && len(s.config.Addresses) > 0 {
		if !s.config.AllowMissingCert || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		s.logger.Info("waiting for the serving certificate; TLS handshakes fail until it exists", "file", s.config.CertFile)
	}
	if err := s.listen(ctx); err != nil {
		return err
	}
	listeners := s.serve(map[service]*http.Server{
		mainService: s.httpServer(ctx, s.handler), healthService: s.httpServer(ctx, s.healthz()),
		readOnlyService: s.httpServer(ctx, ReadOnlyHandler(s.deps)),
	})
	close(s.ready)

	var err error
	for err == nil && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case err = <-listeners.failed:
			err = fmt.Errorf("serve node API: %w", err)
		case <-s.addressesChanged.C():
			s.rebind(ctx, listeners)
		}
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	for _, each := range listeners.servers {
		if stopErr := each.Shutdown(stopCtx); stopErr != nil {
			_ = each.Close()
		}
	}
	listeners.running.Wait()
	// The http.Server does not manage streams; closing their connections ends their handlers.
	s.mu.Lock()
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close()
	}
	s.handlers.Wait()
	return err
}

func (s *Server) httpServer(ctx context.Context, handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           contain.Handler("kubelet.serve", handler),
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnContext:       withConn,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnState:         s.connState,
		ErrorLog:          slog.NewLogLogger(s.logger.Handler(), slog.LevelDebug),
	}
}

func (s *Server) tlsConfig() *tls.Config {
	limits := &tls.Config{MinVersion: tls.VersionTLS12}
	if own := s.config.TLS; own != nil {
		limits = &tls.Config{
			MinVersion: max(own.MinVersion, tls.VersionTLS12), MaxVersion: own.MaxVersion, CipherSuites: own.CipherSuites,
			CurvePreferences: own.CurvePreferences,
		}
	}
	return &tls.Config{
		MinVersion: limits.MinVersion, MaxVersion: limits.MaxVersion, CipherSuites: limits.CipherSuites,
		CurvePreferences: limits.CurvePreferences,
		// Streams upgrade the connection, which HTTP/2 does not support.
		NextProtos: []string{"http/1.1"},
		// Client certificates are optional and verified by the authenticator: a caller may use a token instead.
		ClientAuth:     tls.RequestClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.keyPair.get() },
	}
}

// listenOne listens on one address. The bridge of the Pod network, and so its address, may be created later.
func (s *Server) listenOne(ctx context.Context, address string) (net.Listener, error) {
	raw, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if !errors.Is(err, unix.EADDRNOTAVAIL) {
		return raw, err
	}
	s.logger.Warn("address is not configured yet; will listen once it is", "address", address)
	free := &net.ListenConfig{Control: func(_, _ string, rawConn syscall.RawConn) error {
		var setErr error
		ctlErr := rawConn.Control(func(fd uintptr) {
			setErr = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1)
		})
		return errors.Join(ctlErr, setErr)
	}}
	return free.Listen(ctx, "tcp", address)
}

// trackHandlers counts the requests in progress, so that Start can wait for them.
func (s *Server) trackHandlers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.handlers.Add(1)
		defer s.handlers.Done()
		next.ServeHTTP(w, r)
	})
}

// trackingListener records every connection, since http.Server drops those that become streams.
type trackingListener struct {
	net.Listener
	server *Server
}

func (raw *trackingListener) Accept() (net.Conn, error) {
	conn, err := raw.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tracked := &trackedConn{Conn: conn, server: raw.server}
	raw.server.mu.Lock()
	raw.server.conns[tracked] = struct{}{}
	raw.server.mu.Unlock()
	if surplus := raw.server.strangers.add(tracked); surplus != nil {
		_ = surplus.Close()
	}
	return tracked, nil
}

type trackedConn struct {
	net.Conn
	server *Server
	once   sync.Once
	// idle is how long the connection may transfer nothing, in nanoseconds, once it carries a stream; zero is no limit.
	idle atomic.Int64
	// known is set when a caller on the connection was authenticated.
	known atomic.Bool
	// stranger is set while the connection is one of the server's strangers, whose mu guards it, and sent, what it has sent of the
	// present request then.
	stranger bool
	sent     int
}

// trackedOf returns the connection below that of a request, nil if it is of another kind.
func trackedOf(conn net.Conn) *trackedConn {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	tracked, _ := conn.(*trackedConn)
	return tracked
}

// connState bounds for how long a connection may transfer nothing once it carries a stream, and ends the count of a request's bytes.
func (s *Server) connState(conn net.Conn, state http.ConnState) {
	tracked := trackedOf(conn)
	switch {
	case tracked == nil:
	case state == http.StateIdle && !tracked.known.Load():
		s.strangers.responded(tracked)
	case state == http.StateHijacked && s.config.StreamIdleTimeout > 0:
		tracked.idle.Store(int64(s.config.StreamIdleTimeout))
		tracked.transferred()
	}
}

// transferred begins the time anew in which a stream has to transfer something. The deadline ends reads and writes that wait.
func (c *trackedConn) transferred() {
	if idle := time.Duration(c.idle.Load()); idle > 0 {
		_ = c.Conn.SetDeadline(time.Now().Add(idle)) // fails for a closed connection only
	}
}

// Read implements net.Conn.
func (c *trackedConn) Read(data []byte) (int, error) {
	n, err := c.Conn.Read(data)
	if n > 0 {
		c.transferred()
		if !c.known.Load() {
			if surplus := c.server.strangers.received(c, n); surplus != nil {
				_ = surplus.Close()
			}
		}
	}
	return n, err
}

// Write implements net.Conn.
func (c *trackedConn) Write(data []byte) (int, error) {
	c.transferred()
	return c.Conn.Write(data)
}

// Close implements net.Conn. The calling goroutine must not hold the server's mu.
func (c *trackedConn) Close() error {
	c.once.Do(func() {
		c.server.mu.Lock()
		delete(c.server.conns, c)
		c.server.mu.Unlock()
		c.server.strangers.remove(c)
	})
	return c.Conn.Close()
}
