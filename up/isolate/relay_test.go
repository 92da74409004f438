package isolate

import (
	"context"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// listen opens a UDP and a TCP port of one number.
func listen(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	var err error
	for range 20 { // another process may have the number for the other protocol
		var packets net.PacketConn
		packets, err = net.ListenPacket("udp", "127.0.0.1:0")
		require.NoError(t, err)
		var streams net.Listener
		streams, err = net.Listen("tcp", packets.LocalAddr().String())
		if err == nil {
			return packets, streams
		}
		require.NoError(t, packets.Close())
	}
	require.NoError(t, err)
	return nil, nil
}

// echo is a name server that replies with the request, and for TCP closes the connection then.
func echo(t *testing.T, running *sync.WaitGroup) (address string, stop func()) {
	t.Helper()
	packets, streams := listen(t)
	running.Go(func() {
		buffer := make([]byte, maxDatagram)
		for {
			n, client, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = packets.WriteTo(buffer[:n], client)
		}
	})
	running.Go(func() {
		for {
			connection, err := streams.Accept()
			if err != nil {
				return
			}
			buffer := make([]byte, maxDatagram)
			n, _ := connection.Read(buffer)
			_, _ = connection.Write(buffer[:n])
			_ = connection.Close()
		}
	})
	return packets.LocalAddr().String(), func() { _, _ = packets.Close(), streams.Close() }
}

// short is a listener of a process that has no descriptors for the first call.
type short struct {
	net.Listener
	failed bool
}

func (s *short) Accept() (net.Conn, error) {
	if !s.failed {
		s.failed = true
		return nil, os.NewSyscallError("accept4", unix.EMFILE)
	}
	return s.Listener.Accept()
}

func TestRequestsAreRelayed(t *testing.T) {
	var running sync.WaitGroup
	defer running.Wait()
	server, stop := echo(t, &running)
	defer stop()
	packets, streams := listen(t)
	r := &relay{server: server, packets: packets, streams: &short{Listener: streams}, slots: make(chan struct{}, 4)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	running.Go(func() {
		defer close(ended)
		r.run(ctx)
	})
	defer r.close()
	defer cancel()
	// A request keeps its slot until its relay has ended, which may be after the reply: no request may need another's slot.
	for _, network := range []string{"udp", "tcp", "udp", "tcp"} {
		connection, err := net.Dial(network, packets.LocalAddr().String())
		require.NoError(t, err)
		_, err = connection.Write([]byte("question"))
		require.NoError(t, err)
		reply := make([]byte, 100)
		n, err := connection.Read(reply)
		require.NoError(t, err, network)
		require.Equal(t, "question", string(reply[:n]))
		require.NoError(t, connection.Close())
	}
	r.close()
	<-ended
	for range cap(r.slots) {
		require.True(t, r.take())
	}
	require.False(t, r.take(), "the number of requests is bounded")
	r.free()
	require.True(t, r.take())
}
