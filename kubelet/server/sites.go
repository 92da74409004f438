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

// site is one address that is listened on.
type site struct {
	address string // as it was asked for
	health  bool   // it is HealthzAddress
	net.Listener
}

// sites serves the sites.
type sites struct {
	server, health *http.Server
	tls            *tls.Config
	running        sync.WaitGroup
	failed         chan error // has a value when a site failed that is wanted
}

// Addrs are the addresses listened on, in the order of Config.Addresses, then that of HealthzAddress if there is one.
// It is empty before Ready.
func (s *Server) Addrs() []net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	addrs := make([]net.Addr, 0, len(s.open))
	for _, one := range s.open {
		addrs = append(addrs, one.Addr())
	}
	return addrs
}

// SetAddresses has the server listen on these addresses, as host:port, in place of those it had; what is listened on
// already is left alone, and so are connections. It does not wait for that.
func (s *Server) SetAddresses(addresses []string) {
	s.mu.Lock()
	s.wanted = slices.Clone(addresses)
	s.mu.Unlock()
	select {
	case s.moved <- struct{}{}:
	default:
	}
}

// arrange listens where the server should be and does not yet, HealthzAddress last, and says which sites are new, which
// are no longer wanted (they are still open), and which addresses cannot be had: the server does without those.
func (s *Server) arrange(ctx context.Context) (added, left []site, err error) {
	s.mu.Lock()
	wanted, open := make([]site, 0, len(s.wanted)+1), s.open
	for _, address := range s.wanted {
		wanted = append(wanted, site{address: address})
	}
	s.mu.Unlock()
	if s.cfg.HealthzAddress != "" {
		wanted = append(wanted, site{address: s.cfg.HealthzAddress, health: true})
	}
	next := make([]site, 0, len(wanted))
	var errs []error
	for _, one := range wanted {
		at := slices.IndexFunc(open, func(has site) bool { return has.address == one.address && has.health == one.health })
		if at >= 0 {
			next = append(next, open[at])
			continue
		}
		l, err := s.listenOne(ctx, one.address)
		if err != nil {
			errs = append(errs, fmt.Errorf("listen on %q for the node API: %w", one.address, err))
			continue
		}
		one.Listener = &trackingListener{Listener: l, server: s}
		next, added = append(next, one), append(added, one)
	}
	for _, one := range open {
		if !slices.Contains(next, one) {
			left = append(left, one)
		}
	}
	s.mu.Lock()
	s.open = next
	s.mu.Unlock()
	return added, left, errors.Join(errs...)
}

// listen opens all addresses or none.
func (s *Server) listen(ctx context.Context) error {
	added, _, err := s.arrange(ctx)
	if err == nil {
		return nil
	}
	s.mu.Lock()
	s.open = nil
	s.mu.Unlock()
	for _, one := range added {
		_ = one.Close()
	}
	return err
}

// serve begins to serve what is open.
func (s *Server) serve(server, health *http.Server) *sites {
	all := &sites{server: server, health: health, tls: s.tlsConfig(), failed: make(chan error, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.open {
		s.begin(all, one)
	}
	return all
}

// begin serves one site until it is closed.
func (s *Server) begin(all *sites, one site) {
	all.running.Go(func() {
		var err error
		if one.health {
			err = all.health.Serve(one)
		} else {
			err = all.server.Serve(tls.NewListener(one, all.tls))
		}
		s.mu.Lock()
		left := !slices.Contains(s.open, one)
		s.mu.Unlock()
		if left {
			return
		}
		select {
		case all.failed <- err:
		default: // one is enough
		}
	})
}

// move listens where the server should be, and then no more where it should not. An address that cannot be had is told
// of, and left out.
func (s *Server) move(ctx context.Context, all *sites) {
	added, left, err := s.arrange(ctx)
	if err != nil {
		s.log.Error("the node API is not served on every address that the node has now", "error", err)
	}
	for _, one := range added {
		s.log.Info("the node API is served on another address", "address", one.address)
		s.begin(all, one)
	}
	for _, one := range left {
		_ = one.Close() // nobody comes there any more
	}
}
