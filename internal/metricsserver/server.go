package metricsserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// retryPeriod is the pause before the server listens again on an address that is in use: a process that is about to end
	// may have it, and there is no event for its end.
	retryPeriod = 5 * time.Second
	// headerTimeout bounds the time in which a client sends the header of its request.
	headerTimeout = 10 * time.Second
)

// Check is the state of one component. Nil functions report no error.
type Check struct {
	Name string
	// Ready returns an error while the component does not work yet. A replica that waits for its Lease is ready.
	Ready func() error
	// Healthy returns an error while the component is stuck.
	Healthy func() error
	// IsWaiting, if set, returns whether the component waits for a Lease that another process holds.
	IsWaiting func() bool
}

// Deps are what a Server works with. Gatherer is required; Logger and Clock have the usual defaults.
type Deps struct {
	// Gatherer has the metrics. The server adds those of the process and of Go's runtime.
	Gatherer prometheus.Gatherer
	Checks   []Check
	Logger   *slog.Logger
	Clock    clock.WithTicker
}

// Server serves /metrics, /healthz and /readyz. Start runs it, once.
type Server struct {
	deps     Deps
	address  string
	listener net.Listener // nil while another process has the address
}

// New returns a Server that listens on the address, a host and a port. Without a host that is loopback, because the server
// has no authentication. If the address is in use, Start waits for it; every other error is returned.
func New(deps Deps, address string) (*Server, error) {
	if deps.Gatherer == nil {
		return nil, errors.New("metricsserver: Deps.Gatherer is required")
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	address, err := ParseAddress(address)
	if err != nil {
		return nil, err
	}
	process := prometheus.NewRegistry()
	process.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		contain.Metrics())
	deps.Gatherer = prometheus.Gatherers{process, deps.Gatherer}
	s := &Server{deps: deps, address: address}
	return s, s.listen(context.Background())
}

// ParseAddress returns the address with its default host, or an error that says what is wrong with it.
func ParseAddress(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil && !strings.Contains(address, ":") {
		host, port, err = "", address, nil
	}
	if number, portErr := strconv.ParseUint(port, 10, 16); err == nil && (portErr != nil || number == 0) {
		err = fmt.Errorf("%q is not a port", port)
	}
	if err != nil {
		return "", fmt.Errorf("metrics address %q: want HOST:PORT, or PORT for loopback: %w", address, err)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}

// Address returns the host and port that the server listens on.
func (s *Server) Address() string { return s.address }

// listen sets the listener, or leaves it nil if the address is in use.
func (s *Server) listen(ctx context.Context) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		s.deps.Logger.Error("failed to serve metrics and health; retrying", "address", s.address, "error", err)
	case ctx.Err() != nil:
	case err != nil:
		return fmt.Errorf("listen on %s for metrics: %w", s.address, err)
	default:
		s.listener = listener
		s.deps.Logger.Info("serving metrics and health", "address", s.address)
	}
	return nil
}

// Start serves until ctx ends.
func (s *Server) Start(ctx context.Context) error {
	for s.listener == nil {
		if !wakeup.Sleep(ctx, s.deps.Clock, retryPeriod) {
			return nil
		}
		if err := s.listen(ctx); err != nil {
			return err
		}
	}
	server := &http.Server{Handler: contain.Handler("metrics.serve", s.Handler()), ReadHeaderTimeout: headerTimeout}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // a scrape can be repeated
	defer stop()
	if err := server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics on %s: %w", s.address, err)
	}
	return nil
}

// Handler returns the handler of the three paths.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.deps.Gatherer, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		s.report(w, func(c Check) func() error { return c.Healthy })
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		s.report(w, func(c Check) func() error { return c.Ready })
	})
	return mux
}

// report writes a line for each component, with status 200 if no check fails, else 500, as Kubernetes' components do.
func (s *Server) report(w http.ResponseWriter, of func(Check) func() error) {
	var lines strings.Builder
	status := http.StatusOK
	for _, check := range s.deps.Checks {
		var err error
		if run := of(check); run != nil {
			err = run()
		}
		switch {
		case err != nil:
			status = http.StatusInternalServerError
			fmt.Fprintf(&lines, "[-]%s failed: %s\n", check.Name, strings.ReplaceAll(err.Error(), "\n", "; "))
		case check.IsWaiting != nil && check.IsWaiting():
			fmt.Fprintf(&lines, "[+]%s ok: waiting for the Lease\n", check.Name)
		default:
			fmt.Fprintf(&lines, "[+]%s ok\n", check.Name)
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(lines.String())) // the client has disconnected
}
