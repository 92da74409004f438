package vm

import (
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNetworkPassesFramesOnToAllOthers(t *testing.T) {
	n, err := NewNetwork(t.Context(), filepath.Join(t.TempDir(), "net"))
	require.NoError(t, err)
	defer func() { require.NoError(t, n.Close()) }()
	require.Equal(t, "52:54:00:be:01:01", n.nextMAC())
	require.Equal(t, "52:54:00:be:01:02", n.nextMAC())
	plug := func() net.Conn {
		conn, err := net.Dial("unix", n.path)
		require.NoError(t, err)
		return conn
	}
	a, b, c := plug(), plug(), plug()
	// Each frame is sent until it arrives: a machine is plugged in when the network has accepted it.
	frame := binary.BigEndian.AppendUint32(nil, 5)
	frame = append(frame, "hello"...)
	stop := make(chan struct{})
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := a.Write(frame); err != nil {
					return
				}
			}
		}
	}()
	for _, conn := range []net.Conn{b, c} {
		got := make([]byte, len(frame))
		_, err := io.ReadFull(conn, got)
		require.NoError(t, err)
		require.Equal(t, frame, got)
		go func() { _, _ = io.Copy(io.Discard, conn) }()
	}
	close(stop)
	<-sent
	require.NoError(t, a.Close())
}
