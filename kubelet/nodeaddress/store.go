package nodeaddress

import (
	"net"
	"slices"
	"sync/atomic"
)

// Store has the node's current addresses, the primary one first. It is safe for concurrent use.
type Store struct{ ips atomic.Pointer[[]net.IP] }

// NewStore returns a Store with these addresses.
func NewStore(ips []net.IP) *Store {
	s := &Store{}
	s.set(ips)
	return s
}

// IPs returns the current addresses. The caller must not modify them.
func (s *Store) IPs() []net.IP { return *s.ips.Load() }

// Strings returns the current addresses as text.
func (s *Store) Strings() []string {
	ips := s.IPs()
	texts := make([]string, 0, len(ips))
	for _, ip := range ips {
		texts = append(texts, ip.String())
	}
	return texts
}

func (s *Store) set(ips []net.IP) {
	ips = slices.Clone(ips)
	s.ips.Store(&ips)
}
