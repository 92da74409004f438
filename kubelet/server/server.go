package server

import (
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
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"k8s.io/apiserver/pkg/server/healthz"
)

const (
	// readHeaderTimeout bounds how long a client may take to say what it wants.
	readHeaderTimeout = 32 * time.Second
	// idleTimeout closes kept connections that nobody uses.
	idleTimeout = 90 * time.Second
	// stopTimeout is how long requests may go on after the server was told to stop.
	stopTimeout = 2 * time.Second
)

// ErrNotFound is wrapped by a Host's errors about a Pod or container that does not exist.
var ErrNotFound = errors.New("not found")

// Config are the values of a Server.
type Config struct {
	NodeName string // whose subresources callers need to be allowed
	// Addresses to listen on, as host:port. Port 0 takes a free one; Addrs tells which.
	Addresses []string
	// CertFile and KeyFile hold the serving certificate, in PEM form. They are read again when replaced.
	CertFile, KeyFile string
	// TLS, if set, limits versions and ciphers of connections; its other fields are not looked at.
	TLS *tls.Config
	// AllowMissingCert lets the server begin before those files are there; handshakes fail until they are.
	AllowMissingCert bool
	// HealthzAddress is a loopback host:port where /healthz alone is served, without TLS and to anyone, for local
	// supervisors. Empty means none.
	HealthzAddress string
	// DisableDebugging turns off exec, attach, portForward, run, containerLogs, runningpods, logs and pprof (status
	// 405).
	DisableDebugging bool
	// LogDir is the directory whose files are served at /logs/. Empty means none.
	LogDir string
	// LogQuery lets /logs/ be asked for the logs of the machine's services (?query=NAME), of which Journal tells;
	// "journalctl" if empty.
	LogQuery   bool
	Journalctl string
	// Profiling serves Go's profiler at /debug/pprof/. With Contention the profile "block" is filled while the server runs:
	// it tells where goroutines waited for each other, and costs some time at each wait of the whole process.
	Profiling, ContentionProfiling bool
	// DebugFlags takes a log level at /debug/flags/v.
	DebugFlags bool
}

func (c Config) validate() error {
	switch {
	case c.NodeName == "":
		return errors.New("make node server: Config.NodeName is empty")
	case len(c.Addresses) == 0:
		return errors.New("make node server: Config.Addresses is empty: name at least one host:port")
	case c.CertFile == "" || c.KeyFile == "":
		return errors.New("make node server: Config.CertFile and Config.KeyFile are both needed: " +
			"the server speaks TLS only")
	}
	for _, address := range c.Addresses {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return fmt.Errorf("make node server: Config.Addresses %q: %w", address, err)
		}
	}
	if c.HealthzAddress != "" {
		host, _, err := net.SplitHostPort(c.HealthzAddress)
		if err != nil {
			return fmt.Errorf("make node server: Config.HealthzAddress %q: %w", c.HealthzAddress, err)
		}
		if !net.ParseIP(host).IsLoopback() {
			return fmt.Errorf("make node server: Config.HealthzAddress %q: it is open to anyone, so it must be a "+
				"loopback address such as 127.0.0.1:10248", c.HealthzAddress)
		}
	}
	return nil
}

// Deps are what a Server works with. Host and Auth are needed; the rest may be nil.
type Deps struct {
	Host Host
	Auth Auth
	// Metrics and ProbeMetrics are served at /metrics and /metrics/probes.
	Metrics, ProbeMetrics prometheus.Gatherer
	// Stats is served at /stats/summary, /metrics/resource and /metrics/cadvisor.
	Stats Stats
	// Configz gives the effective configuration by component name, for /configz.
	Configz func() map[string]any
	// RequestMetrics counts the requests.
	RequestMetrics *RequestMetrics
	// Flags are the command line's flags by name, for /flagz; without any there is none.
	Flags map[string]string
	// Checks are asked for /healthz beside ping.
	Checks []healthz.HealthChecker
	Logger *slog.Logger
}

// Server is the node agent's HTTPS server.
type Server struct {
	config   Config
	deps     Deps
	logger   *slog.Logger
	keyPair  *keyPair
	handler  http.Handler
	ready    chan struct{}
	handlers sync.WaitGroup // requests being served

	addressesChanged chan struct{} // has a value when wanted has changed

	mu        sync.Mutex // guards below
	addresses []string   // addresses to listen on, but for that of HealthzAddress
	listeners []listener
	conns     map[net.Conn]struct{} // all open ones, hijacked ones too
}

// New makes a Server. It reads no file and opens no port before Start.
func New(deps Deps, config Config) (*Server, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	if deps.Host == nil || deps.Auth.Authenticator == nil || deps.Auth.Authorizer == nil {
		return nil, errors.New("make node server: Deps.Host, Deps.Auth.Authenticator and Deps.Auth.Authorizer are needed")
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
		addressesChanged: make(chan struct{}, 1), addresses: slices.Clone(config.Addresses),
		conns: make(map[net.Conn]struct{}),
	}
	s.handler = s.trackHandlers(deps.RequestMetrics.Instrument("readwrite", deps.Auth.authorize(config.NodeName, deps.Logger, s.routes())))
	return s, nil
}

// Ready is closed when the server listens on all its addresses.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Start serves until ctx ends, then lets short requests finish, cuts the others and returns when all are gone.
func (s *Server) Start(ctx context.Context) error {
	if s.config.ContentionProfiling && s.config.Profiling && !s.config.DisableDebugging {
		runtime.SetBlockProfileRate(1) // each wait, as upstream's
		defer runtime.SetBlockProfileRate(0)
	}
	if _, err := s.keyPair.get(); err != nil {
		if !s.config.AllowMissingCert || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		s.logger.Info("the node API answers as soon as its serving certificate is there", "file", s.config.CertFile)
	}
	if err := s.listen(ctx); err != nil {
		return err
	}
	server, health := s.httpServer(ctx, s.handler), s.httpServer(ctx, s.healthz())
	listeners := s.serve(server, health)
	close(s.ready)

	var err error
	for err == nil && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case err = <-listeners.failed:
			err = fmt.Errorf("serve node API: %w", err)
		case <-s.addressesChanged:
			s.rebind(ctx, listeners)
		}
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	for _, each := range []*http.Server{server, health} {
		if stopErr := each.Shutdown(stopCtx); stopErr != nil {
			_ = each.Close()
		}
	}
	listeners.running.Wait()
	// Streams are no longer the http.Server's; cutting their connection ends their handlers.
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
		Handler:           handler,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(s.logger.Handler(), slog.LevelDebug),
	}
}

func (s *Server) tlsConfig() *tls.Config {
	limits := &tls.Config{MinVersion: tls.VersionTLS12}
	if own := s.config.TLS; own != nil {
		limits = &tls.Config{
			MinVersion: max(own.MinVersion, tls.VersionTLS12), MaxVersion: own.MaxVersion, CipherSuites: own.CipherSuites,
		}
	}
	return &tls.Config{
		MinVersion: limits.MinVersion, MaxVersion: limits.MaxVersion, CipherSuites: limits.CipherSuites,
		// Streams upgrade the connection, which HTTP/2 cannot.
		NextProtos: []string{"http/1.1"},
		// Certificates are asked for, and judged by the authenticator: a caller may bring a token instead.
		ClientAuth:     tls.RequestClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.keyPair.get() },
	}
}

// listenOne opens one address. The bridge of the pod network, and so its address, may come after us.
func (s *Server) listenOne(ctx context.Context, address string) (net.Listener, error) {
	raw, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if !errors.Is(err, unix.EADDRNOTAVAIL) {
		return raw, err
	}
	s.logger.Warn("no interface has this address yet: listening for the time when one has", "address", address)
	free := &net.ListenConfig{Control: func(_, _ string, rawConn syscall.RawConn) error {
		var setErr error
		ctlErr := rawConn.Control(func(fd uintptr) {
			setErr = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1)
		})
		return errors.Join(ctlErr, setErr)
	}}
	return free.Listen(ctx, "tcp", address)
}

// trackHandlers keeps count of the requests being served, so that Start can join them.
func (s *Server) trackHandlers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.handlers.Add(1)
		defer s.handlers.Done()
		next.ServeHTTP(w, r)
	})
}

// trackingListener notes every connection, since http.Server forgets those that became streams.
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
	return tracked, nil
}

type trackedConn struct {
	net.Conn
	server *Server
	once   sync.Once
}

// Close implements net.Conn. It must not be called with the server's mu held by the same goroutine.
func (c *trackedConn) Close() error {
	c.once.Do(func() {
		c.server.mu.Lock()
		delete(c.server.conns, c)
		c.server.mu.Unlock()
	})
	return c.Conn.Close()
}
