// Package socketmetrics is a plugin of CoreDNS. It counts requests as the plugin prometheus does, under the same names, and serves
// all metrics of the process on a unix socket, which only the process's own user may open: the other plugin's port is open to every
// user of the machine.
package socketmetrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metrics"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/berth-dev/berth/dns/contain"
)

// Name is the directive of the Corefile. Its argument is the path of the socket.
const Name = "metrics_socket"

func init() { plugin.Register(Name, setup) }

// setup adds the plugin to a server block.
func setup(c *caddy.Controller) error {
	path, err := parse(c)
	if err != nil {
		return plugin.Error(Name, err)
	}
	counter := metrics.New("")
	for _, zone := range plugin.OriginsFromArgsOrServerBlock(nil, c.ServerBlockKeys) {
		counter.AddZone(zone)
	}
	s := &server{path: path}
	c.OnStartup(s.start)
	c.OnRestart(s.stop)
	c.OnRestartFailed(s.start)
	c.OnFinalShutdown(s.stop)
	dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler {
		counter.Next = next
		return counter
	})
	return nil
}

// parse returns the path of the socket.
func parse(c *caddy.Controller) (string, error) {
	c.Next() // the directive
	arguments := c.RemainingArgs()
	if len(arguments) != 1 {
		return "", c.ArgErr()
	}
	if c.Next() {
		return "", plugin.ErrOnce
	}
	return arguments[0], nil
}

// server serves the metrics while the server block runs.
type server struct {
	path string
	http *http.Server // nil while it does not run
}

// The bounds of one request.
const (
	requestTimeout = 5 * time.Second
	stopTimeout    = 5 * time.Second
)

// start opens the socket, in place of one that a killed process left.
func (s *server) start() error {
	if err := os.Remove(s.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s: replace the socket: %w", Name, err)
	}
	listener, err := net.Listen("unix", s.path)
	if err != nil {
		return fmt.Errorf("%s: %w", Name, err)
	}
	if err := os.Chmod(s.path, 0o600); err != nil {
		return errors.Join(fmt.Errorf("%s: protect the socket: %w", Name, err), listener.Close())
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.Handler())
	s.http = &http.Server{Handler: contain.Handler("socketmetrics", mux), ReadTimeout: requestTimeout, WriteTimeout: requestTimeout}
	server := s.http
	go contain.Guard("socketmetrics.serve", func() { _ = server.Serve(listener) })() // it ends with stop
	return nil
}

// stop ends the requests and removes the socket.
func (s *server) stop() error {
	if s.http == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	s.http = nil
	if err != nil {
		return fmt.Errorf("%s: %w", Name, err)
	}
	return nil
}
