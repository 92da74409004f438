package up

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/up/isolate"
)

func TestThePageKeepsItsPort(t *testing.T) {
	c := &Cluster{}
	socket, err := c.openPage(t.Context())
	require.NoError(t, err)
	port := c.PagePort
	require.NotZero(t, port)
	inside := &Cluster{config: RunConfig{Inside: &isolate.Inside{Page: socket}}}
	_, err = inside.openPage(t.Context())
	require.NoError(t, err)
	require.Equal(t, port, inside.PagePort, "an isolated cluster inherits the socket")

	other := &Cluster{}
	other.PagePort = port // it is in use
	second, err := other.openPage(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, port, other.PagePort)
	require.NoError(t, second.Close())
	require.NoError(t, socket.Close())
	again := &Cluster{}
	again.PagePort = port
	socket, err = again.openPage(t.Context())
	require.NoError(t, err)
	require.Equal(t, port, again.PagePort)
	listener, err := net.FileListener(socket)
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	require.NoError(t, socket.Close())

	without := &Cluster{config: RunConfig{Without: []string{pageName}}}
	socket, err = without.openPage(t.Context())
	require.NoError(t, err)
	require.Nil(t, socket)
}
