package server

import "net"

// Addrs are the addresses listened on, in the order of Config.Addresses, then that of HealthzAddress if there is one.
// It is empty before Ready.
func (s *Server) Addrs() []net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	addrs := make([]net.Addr, 0, len(s.listeners))
	for _, l := range s.listeners {
		addrs = append(addrs, l.Addr())
	}
	return addrs
}
