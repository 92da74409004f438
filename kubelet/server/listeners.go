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
)

// listener is one address that is listened on.
type listener struct {
	address string // as it was asked for
	health  bool   // it is HealthzAddress
	net.Listener
}

// listeners serves the sites.
type listeners struct {
	server, health *http.Server
	tls            *tls.Config
	running        sync.WaitGroup
	failed         chan error // has a value when a site failed that is wanted
}

// SetAddresses has the server listen on these addresses, as host:port, in place of those it had; what is listened on
// already is left alone, and so are connections. It does not wait for that.
func (s *Server) SetAddresses(addresses []string) {
	s.mu.Lock()
	s.addresses = slices.Clone(addresses)
	s.mu.Unlock()
	select {
	case s.addressesChanged <- struct{}{}:
	default:
	}
}

// reconcileListeners listens where the server should be and does not yet, HealthzAddress last, and says which sites are new, which
// are no longer wanted (they are still open), and which addresses cannot be had: the server does without those.
func (s *Server) reconcileListeners(ctx context.Context) (added, removed []listener, err error) {
	s.mu.Lock()
	desired, open := make([]listener, 0, len(s.addresses)+1), s.listeners
	for _, address := range s.addresses {
		desired = append(desired, listener{address: address})
	}
	s.mu.Unlock()
	if s.config.HealthzAddress != "" {
		desired = append(desired, listener{address: s.config.HealthzAddress, health: true})
	}
	next := make([]listener, 0, len(desired))
	var errs []error
	for _, l := range desired {
		index := slices.IndexFunc(open, func(has listener) bool { return has.address == l.address && has.health == l.health })
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

// listen opens all addresses or none.
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

// serve begins to serve what is open.
func (s *Server) serve(server, health *http.Server) *listeners {
	all := &listeners{server: server, health: health, tls: s.tlsConfig(), failed: make(chan error, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listeners {
		s.serveListener(all, l)
	}
	return all
}

// serveListener serves one site until it is closed.
func (s *Server) serveListener(all *listeners, l listener) {
	all.running.Go(func() {
		var err error
		if l.health {
			err = all.health.Serve(l)
		} else {
			err = all.server.Serve(tls.NewListener(l, all.tls))
		}
		s.mu.Lock()
		removed := !slices.Contains(s.listeners, l)
		s.mu.Unlock()
		if removed {
			return
		}
		select {
		case all.failed <- err:
		default: // one is enough
		}
	})
}

// rebind listens where the server should be, and then no more where it should not. An address that cannot be had is told
// of, and left out.
func (s *Server) rebind(ctx context.Context, all *listeners) {
	added, removed, err := s.reconcileListeners(ctx)
	if err != nil {
		s.logger.Error("the node API is not served on every address that the node has now", "error", err)
	}
	for _, l := range added {
		s.logger.Info("the node API is served on another address", "address", l.address)
		s.serveListener(all, l)
	}
	for _, l := range removed {
		_ = l.Close() // nobody comes there any more
	}
}
