package server

import (
	"context"
	"net"
	"sync"
)

const (
	// maxStrangers is how many connections the server holds that have sent no request of an authenticated caller, and
	// maxStrangersPerSource how many of them of one address. A further one closes the oldest of the address that has the most.
	maxStrangers, maxStrangersPerSource = 512, 64
	// maxHeaderBytes bounds the header of a request. It is that of kube-apiserver and of Kubernetes' kubelet, because the command of an
	// exec is a part of the URL.
	maxHeaderBytes = 1 << 20
	// maxStrangerBytes bounds what all strangers together have sent of their requests: as many headers as they may have connections
	// would need too much memory. What exceeds it closes the connection that has sent the most, of the address that has.
	maxStrangerBytes = 32 << 20
)

// strangers are the connections of callers that are not authenticated yet. Each can be had for the price of a TCP connection, so
// that their number is bounded. It is safe for concurrent use.
type strangers struct {
	mu       sync.Mutex // guards all below, and what the connections have sent
	n        int
	sent     int
	bySource map[string][]*trackedConn // the oldest first
}

func newStrangers() *strangers { return &strangers{bySource: map[string][]*trackedConn{}} }

// add adds a connection, and returns one that is to be closed for it, or nil.
func (s *strangers) add(conn *trackedConn) *trackedConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	source := sourceOf(conn)
	s.bySource[source] = append(s.bySource[source], conn)
	s.n++
	conn.stranger = true
	if len(s.bySource[source]) <= maxStrangersPerSource {
		if s.n <= maxStrangers {
			return nil
		}
		for other, conns := range s.bySource {
			if len(conns) > len(s.bySource[source]) {
				source = other
			}
		}
	}
	oldest := s.bySource[source][0]
	s.removeLocked(oldest)
	return oldest
}

// received counts bytes that a connection has received, and returns one that is to be closed for them, or nil.
func (s *strangers) received(conn *trackedConn, n int) *trackedConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !conn.stranger {
		return nil
	}
	conn.sent += n
	if s.sent += n; s.sent <= maxStrangerBytes {
		return nil
	}
	var most *trackedConn
	mostOfSource := 0
	for _, conns := range s.bySource {
		sum, largest := 0, conns[0]
		for _, one := range conns {
			if sum += one.sent; one.sent > largest.sent {
				largest = one
			}
		}
		if sum > mostOfSource {
			most, mostOfSource = largest, sum
		}
	}
	s.removeLocked(most)
	return most
}

// responded forgets what a connection has sent of a request that has ended.
func (s *strangers) responded(conn *trackedConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent -= conn.sent
	conn.sent = 0
}

// remove removes a connection that has ended, or whose caller is authenticated.
func (s *strangers) remove(conn *trackedConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeLocked(conn)
}

func (s *strangers) removeLocked(conn *trackedConn) {
	source := sourceOf(conn)
	conns := s.bySource[source]
	for i, other := range conns {
		if other != conn {
			continue
		}
		s.n--
		s.sent -= conn.sent
		conn.stranger, conn.sent = false, 0
		if len(conns) == 1 {
			delete(s.bySource, source)
			return
		}
		s.bySource[source] = append(conns[:i:i], conns[i+1:]...)
		return
	}
}

// sourceOf returns the address of the caller, without the port.
func sourceOf(conn net.Conn) string {
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		return conn.RemoteAddr().String()
	}
	return host
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

// withConn makes the connection known to the handlers of its requests.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	if tracked := trackedOf(conn); tracked != nil {
		return context.WithValue(ctx, connKey{}, tracked)
	}
	return ctx
}

// markAuthenticated ends the bounds of the request's connection.
func markAuthenticated(ctx context.Context) {
	if conn, ok := ctx.Value(connKey{}).(*trackedConn); ok && conn.known.CompareAndSwap(false, true) {
		conn.server.strangers.remove(conn)
	}
}
