// Package listen combines listeners on several addresses into one, because
// kube-apiserver serves exactly one.
package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"

	"github.com/berth-dev/berth/controlplane/contain"
)

// Listener accepts the connections of all its addresses. It is safe for use by
// several goroutines.
type Listener struct {
	listeners []net.Listener

	start    sync.Once      // starts the accepting goroutines, at the first Accept
	close    sync.Once      // closes done
	done     chan struct{}  // closed by Close
	accepted chan accepted  // what the goroutines accepted
	running  sync.WaitGroup // the accepting goroutines
}

var _ net.Listener = (*Listener)(nil)

type accepted struct {
	conn net.Conn
	err  error
}

// Open listens with TCP on port of each address, or on none of them: the error
// names the address that failed. There must be at least one.
func Open(ctx context.Context, addresses []string, port int) (*Listener, error) {
	if len(addresses) == 0 {
		return nil, errors.New("listen: no address given")
	}
	merged := &Listener{done: make(chan struct{}), accepted: make(chan accepted)}
	for _, address := range addresses {
		hostPort := net.JoinHostPort(address, strconv.Itoa(port))
		var config net.ListenConfig
		listener, err := config.Listen(ctx, "tcp", hostPort)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("listen on %s: %w%s", hostPort, err, advice(err)), merged.Close())
		}
		merged.listeners = append(merged.listeners, listener)
	}
	return merged, nil
}

// Inherit adds a listening socket that another process opened, and closes the file. Call it before Accept.
func (l *Listener) Inherit(file *os.File) error {
	listener, err := net.FileListener(file) // a copy
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("listen on the inherited socket %s: %w", file.Name(), err)
	}
	l.listeners = append(l.listeners, listener)
	return nil
}

func advice(err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return ": another process listens on it; stop it or choose another --api-port"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return ": no interface of this machine has the address; add it or change --bind-address"
	default:
		return ""
	}
}

// Accept returns the next connection of any address. After Close it returns an
// error that is net.ErrClosed.
func (l *Listener) Accept() (net.Conn, error) {
	l.start.Do(l.startAccepting)
	select {
	case next := <-l.accepted:
		return next.conn, next.err
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Addr is the first address.
func (l *Listener) Addr() net.Addr { return l.listeners[0].Addr() }

// Addrs are all addresses, in the order given.
func (l *Listener) Addrs() []net.Addr {
	addrs := make([]net.Addr, 0, len(l.listeners))
	for _, listener := range l.listeners {
		addrs = append(addrs, listener.Addr())
	}
	return addrs
}

// Close stops listening on all addresses and waits for its goroutines.
// Connections already accepted stay open. It may be called more than once.
func (l *Listener) Close() error {
	var errs []error
	l.close.Do(func() {
		close(l.done)
		l.start.Do(func() {}) // a later Accept starts nothing
		for _, listener := range l.listeners {
			errs = append(errs, listener.Close())
		}
	})
	l.running.Wait()
	return errors.Join(errs...)
}

func (l *Listener) startAccepting() {
	for _, listener := range l.listeners {
		l.running.Go(contain.Guard("listen.accept", func() { l.acceptFrom(listener) }))
	}
}

func (l *Listener) acceptFrom(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		select {
		case l.accepted <- accepted{conn, err}:
		case <-l.done:
			if conn != nil {
				_ = conn.Close() // no Accept will return it
			}
			return
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
	}
}
