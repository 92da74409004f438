package freeport

import (
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNoConnectionTakesAFreePort compares with the ports that the kernel says it gives to outgoing connections.
func TestNoConnectionTakesAFreePort(t *testing.T) {
	low, high := ephemeralPorts()
	if low <= first && last <= high {
		t.Skip("this machine gives all ports to outgoing connections")
	}
	for range 200 {
		port, err := Loopback()
		require.NoError(t, err)
		require.False(t, low <= port && port <= high, "%d is one of %d to %d", port, low, high)
	}
}

func TestAPortThatIsListenedOnIsNotFree(t *testing.T) {
	port, err := Loopback()
	require.NoError(t, err)
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	require.NoError(t, err, "it is free")
	defer listener.Close()
	_, err = listenOn(port)
	require.Error(t, err)
}

func TestAPreferredPortThatIsTakenIsReplaced(t *testing.T) {
	free, err := Loopback()
	require.NoError(t, err)
	port, err := Prefer(free)
	require.NoError(t, err)
	require.Equal(t, free, port)
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(free)))
	require.NoError(t, err)
	defer listener.Close()
	port, err = Prefer(free)
	require.NoError(t, err)
	require.NotEqual(t, free, port)
}
