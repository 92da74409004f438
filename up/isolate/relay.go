package isolate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/berth-dev/berth/internal/accept"
)

const (
	dnsPort = 53
	// maxDatagram is the largest UDP message.
	maxDatagram = 64 << 10
	// replyTimeout is how long a name server may take for a reply, and how long a connection may be idle: resolvers repeat a
	// request earlier.
	replyTimeout = 10 * time.Second
	// maxRequests bounds the requests of one relay that wait for a reply. Others are dropped, as UDP may be.
	maxRequests = 512
)

// relay passes DNS requests from the cluster's network namespace on to a name server on the machine's loopback.
type relay struct {
	server  string // with the port
	packets net.PacketConn
	streams net.Listener
	slots   chan struct{}
}

// listenInside makes a relay for each name server, at the server's own address in the network namespace of the process.
func listenInside(ctx context.Context, pid int, servers []netip.Addr) ([]*relay, error) {
	if len(servers) == 0 {
		return nil, nil
	}
	var relays []*relay
	err := inNetwork(pid, func() error {
		for _, server := range servers {
			address := netip.AddrPortFrom(server, dnsPort).String()
			var config net.ListenConfig
			packets, err := config.ListenPacket(ctx, "udp", address)
			if err != nil {
				return fmt.Errorf("relay DNS to %s: %w", address, err)
			}
			streams, err := config.Listen(ctx, "tcp", address)
			if err != nil {
				return errors.Join(fmt.Errorf("relay DNS to %s: %w", address, err), packets.Close())
			}
			relays = append(relays, &relay{server: address, packets: packets, streams: streams, slots: make(chan struct{}, maxRequests)})
		}
		return nil
	})
	return relays, err
}

// run relays until the sockets are closed.
func (r *relay) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(contained("isolate.relayPackets", func() { r.relayPackets(ctx, &running) }))
	for {
		connection, err := accept.Next(ctx, r.streams)
		if err != nil {
			return
		}
		if !r.take() {
			_ = connection.Close()
			continue
		}
		running.Go(contained("isolate.relayStream", func() {
			defer r.free()
			r.relayStream(ctx, connection)
		}))
	}
}

func (r *relay) close() { _ = errors.Join(r.packets.Close(), r.streams.Close()) }

func (r *relay) take() bool {
	select {
	case r.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

func (r *relay) free() { <-r.slots }

func (r *relay) relayPackets(ctx context.Context, running *sync.WaitGroup) {
	buffer := make([]byte, maxDatagram)
	for {
		n, client, err := r.packets.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || !r.take() {
			continue
		}
		request := append([]byte(nil), buffer[:n]...)
		running.Go(contained("isolate.exchange", func() {
			defer r.free()
			// A lost request or reply is repeated by the client.
			if reply, err := r.exchange(ctx, request); err == nil {
				_, _ = r.packets.WriteTo(reply, client)
			}
		}))
	}
}

// exchange sends a request to the name server and returns its reply.
func (r *relay) exchange(ctx context.Context, request []byte) ([]byte, error) {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "udp", r.server)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(replyTimeout)); err != nil {
		return nil, err
	}
	if _, err := connection.Write(request); err != nil {
		return nil, err
	}
	reply := make([]byte, maxDatagram)
	n, err := connection.Read(reply)
	return reply[:n], err
}

// relayStream passes a TCP connection on until either side closes it, or it is idle.
func (r *relay) relayStream(ctx context.Context, client net.Conn) {
	defer client.Close()
	dialer := net.Dialer{Timeout: replyTimeout}
	server, err := dialer.DialContext(ctx, "tcp", r.server)
	if err != nil {
		return
	}
	defer server.Close()
	var running sync.WaitGroup
	running.Go(contained("isolate.pass", func() { pass(server, client) }))
	pass(client, server)
	running.Wait()
}

// pass copies from one connection to the other until the end or an idle period, and closes both.
func pass(to, from net.Conn) {
	defer func() { _ = errors.Join(to.Close(), from.Close()) }()
	buffer := make([]byte, maxDatagram)
	for {
		if err := from.SetReadDeadline(time.Now().Add(replyTimeout)); err != nil {
			return
		}
		n, err := from.Read(buffer)
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
