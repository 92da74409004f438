package isolate

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a name server that replies with the request, and for TCP closes the connection then.
func echo(t *testing.T, running *sync.WaitGroup) (address string, stop func()) {
	t.Helper()
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	streams, err := net.Listen("tcp", packets.LocalAddr().String())
	require.NoError(t, err)
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

func TestRequestsAreRelayed(t *testing.T) {
	var running sync.WaitGroup
	defer running.Wait()
	server, stop := echo(t, &running)
	defer stop()
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	streams, err := net.Listen("tcp", packets.LocalAddr().String())
	require.NoError(t, err)
	r := &relay{server: server, packets: packets, streams: streams, slots: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	running.Go(func() { r.run(ctx) })
	defer r.close()
	defer cancel()
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
	require.True(t, r.take())
	require.False(t, r.take(), "the number of requests is bounded")
	r.free()
}
