package addresses

import (
	"net"
	"slices"
	"sync/atomic"
)

// Book has the node's addresses, the primary one first. It is safe for concurrent use.
type Book struct{ ips atomic.Pointer[[]net.IP] }

// NewBook makes a Book of these addresses.
func NewBook(ips []net.IP) *Book {
	b := &Book{}
	b.set(ips)
	return b
}

// IPs are the addresses of now. They must not be changed.
func (b *Book) IPs() []net.IP { return *b.ips.Load() }

// Strings are the same as words.
func (b *Book) Strings() []string {
	ips := b.IPs()
	words := make([]string, 0, len(ips))
	for _, ip := range ips {
		words = append(words, ip.String())
	}
	return words
}

func (b *Book) set(ips []net.IP) {
	ips = slices.Clone(ips)
	b.ips.Store(&ips)
}
