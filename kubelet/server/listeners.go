package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"

	"github.com/berth-dev/berth/internal/contain"
)

// service is what is served on an address.
type service int

const (
	mainService     service = iota // the API, with TLS
	healthService                  // Config.HealthzAddress
	readOnlyService                // Config.ReadOnlyAddress
)

// listener listens on one address.
type listener struct {
	address string // as configured
	service service
	net.Listener
}

// listeners serves requests on all listeners.
type listeners struct {
	servers map[service]*http.Server
	tls     *tls.Config
	running sync.WaitGroup
	failed  chan error // has a value when a listener failed that is still configured
}

// SetAddresses replaces the addresses, as host:port, that the server listens on. Existing listeners and connections
// that remain valid are kept. It does not wait for the change.
func (s *Server) SetAddresses(addresses []string) {
	s.mu.Lock()
	s.addresses = slices.Clone(addresses)
	s.mu.Unlock()
	s.addressesChanged.Notify()
}

// reconcileListeners opens the missing listeners, those without TLS last, and returns the new ones and those that are no
// longer configured, which are still open. Addresses that cannot be listened on are returned as an error and skipped.
func (s *Server) reconcileListeners(ctx context.Context) (added, removed []listener, err error) {
	s.mu.Lock()
	desired, open := make([]listener, 0, len(s.addresses)+2), s.listeners
	for _, address := range s.addresses {
		desired = append(desired, listener{address: address})
	}
	s.mu.Unlock()
	if s.config.ReadOnlyAddress != "" {
		desired = append(desired, listener{address: s.config.ReadOnlyAddress, service: readOnlyService})
	}
	if s.config.HealthzAddress != "" {
		desired = append(desired, listener{address: s.config.HealthzAddress, service: healthService})
	}
	next := make([]listener, 0, len(desired))
	var errs []error
	for _, l := range desired {
		index := slices.IndexFunc(open, func(has listener) bool { return has.address == l.address && has.service == l.service })
		if index >= 0 {
			next = append(next, open[index])
			continue
		}
		raw, err := s.listenOne(ctx, l.address)
		if err != nil {
			errs = append(errs, fmt.Errorf("listen on %q for the node API: %w", l.address, err))
			continue
		}
		l.Listener = &trackingListener{Listener: raw, server: s}
		next, added = append(next, l), append(added, l)
	}
	for _, l := range open {
		if !slices.Contains(next, l) {
			removed = append(removed, l)
		}
	}
	s.mu.Lock()
	s.listeners = next
	s.mu.Unlock()
	return added, removed, errors.Join(errs...)
}

// listen opens all listeners or none.
func (s *Server) listen(ctx context.Context) error {
	added, _, err := s.reconcileListeners(ctx)
	if err == nil {
		return nil
	}
	s.mu.Lock()
	s.listeners = nil
	s.mu.Unlock()
	for _, l := range added {
		_ = l.Close()
	}
	return err
}

// serve starts serving on the open listeners.
func (s *Server) serve(servers map[service]*http.Server) *listeners {
	all := &listeners{servers: servers, tls: s.tlsConfig(), failed: make(chan error, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listeners {
		s.serveListener(all, l)
	}
	return all
}

// serveListener serves one listener until it is closed.
func (s *Server) serveListener(all *listeners, l listener) {
	all.running.Go(contain.Guard("server.serveListener", "", func() {
		var served net.Listener = l
		if l.service == mainService {
			served = tls.NewListener(l, all.tls)
		}
		err := all.servers[l.service].Serve(served)
		s.mu.Lock()
		removed := !slices.Contains(s.listeners, l)
		s.mu.Unlock()
		if removed {
			return
		}
		select {
		case all.failed <- err:
		default: // the first failure is enough
		}
	}))
}

// rebind opens the missing listeners and closes those that are no longer configured. An address that cannot be listened
// on is logged and skipped.
func (s *Server) rebind(ctx context.Context, all *listeners) {
	added, removed, err := s.reconcileListeners(ctx)
	if err != nil {
		s.logger.Error("failed to listen on some of the node's addresses", "error", err)
	}
	for _, l := range added {
		s.logger.Info("listening on additional address", "address", l.address)
		s.serveListener(all, l)
	}
	for _, l := range removed {
		_ = l.Close() // no longer configured
	}
}
