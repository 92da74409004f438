package server

import (
	"context"
	"crypto/tls"
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

// listen opens all addresses or none; that of HealthzAddress, if any, is the last.
func (s *Server) listen(ctx context.Context) error {
	s.mu.Lock()
	wanted := s.wanted
	s.mu.Unlock()
	var open []site
	add := func(address string, health bool) error {
		l, err := s.listenOne(ctx, address)
		if err != nil {
			for _, one := range open {
				_ = one.Close()
			}
			return fmt.Errorf("listen on %q for the node API: %w", address, err)
		}
		open = append(open, site{address, health, &trackingListener{Listener: l, server: s}})
		return nil
	}
	for _, address := range wanted {
		if err := add(address, false); err != nil {
			return err
		}
	}
	if s.cfg.HealthzAddress != "" {
		if err := add(s.cfg.HealthzAddress, true); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.open = open
	s.mu.Unlock()
	return nil
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
	s.mu.Lock()
	wanted, open := s.wanted, s.open
	s.mu.Unlock()
	next := make([]site, 0, len(wanted)+1)
	var added []site
	for _, address := range wanted {
		if at := slices.IndexFunc(open, func(one site) bool { return one.address == address && !one.health }); at >= 0 {
			next = append(next, open[at])
			continue
		}
		l, err := s.listenOne(ctx, address)
		if err != nil {
			s.log.Error("the node API is not served on an address that the node has now", "address", address, "error", err)
			continue
		}
		added = append(added, site{address, false, &trackingListener{Listener: l, server: s}})
	}
	next = append(next, added...)
	for _, one := range open {
		if one.health {
			next = append(next, one)
		}
	}
	s.mu.Lock()
	s.open = next
	s.mu.Unlock()
	for _, one := range added {
		s.log.Info("the node API is served on another address", "address", one.address)
		s.begin(all, one)
	}
	for _, one := range open {
		if !slices.Contains(next, one) {
			_ = one.Close() // nobody comes there any more
		}
	}
}
