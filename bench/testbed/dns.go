package testbed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// dnsTimeout is how long one question waits for its response.
const dnsTimeout = time.Second

// Resolver sends questions to one DNS server, over one socket. It is not safe for concurrent use.
type Resolver struct {
	conn net.Conn
	id   uint16
}

// NewResolver returns a Resolver for the server; the caller closes it.
func NewResolver(ctx context.Context, server string) (*Resolver, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "udp", server)
	if err != nil {
		return nil, fmt.Errorf("reach DNS at %s: %w", server, err)
	}
	return &Resolver{conn: conn}, nil
}

// Close closes the socket.
func (r *Resolver) Close() error { return r.conn.Close() }

// Lookup returns the IPv4 address of a full name that ends with a dot, or the zero Addr if the name has none or the server
// does not respond.
func (r *Resolver) Lookup(name string) (netip.Addr, error) {
	parsed, err := dnsmessage.NewName(name)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("look up %s: %w", name, err)
	}
	r.id++
	question := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: r.id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: parsed, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	packet, err := question.Pack()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("look up %s: %w", name, err)
	}
	if err := r.conn.SetDeadline(time.Now().Add(dnsTimeout)); err != nil {
		return netip.Addr{}, fmt.Errorf("look up %s: %w", name, err)
	}
	if _, err := r.conn.Write(packet); err != nil {
		return netip.Addr{}, nil // nothing listens there yet
	}
	buffer := make([]byte, 1500)
	for {
		n, err := r.conn.Read(buffer)
		if err != nil {
			return netip.Addr{}, nil // as above, or it took too long
		}
		var response dnsmessage.Message
		if err := response.Unpack(buffer[:n]); err != nil {
			return netip.Addr{}, fmt.Errorf("look up %s: %w", name, err)
		}
		if response.ID == r.id {
			return firstAddress(&response), nil
		}
	}
}

func firstAddress(response *dnsmessage.Message) netip.Addr {
	for _, answer := range response.Answers {
		if a, is := answer.Body.(*dnsmessage.AResource); is {
			return netip.AddrFrom4(a.A)
		}
	}
	return netip.Addr{}
}

// questionPause is the pause between two questions about a name that does not exist yet.
const questionPause = time.Millisecond

// WaitName asks for the name until it has an address, and returns when that was.
func (r *Resolver) WaitName(ctx context.Context, name string) (time.Time, error) {
	pause := time.NewTicker(questionPause)
	defer pause.Stop()
	for {
		address, err := r.Lookup(name)
		if err != nil {
			return time.Time{}, err
		}
		if address.IsValid() {
			return time.Now(), nil
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return time.Time{}, errors.Join(fmt.Errorf("%s has no address", name), ctx.Err())
		}
	}
}
