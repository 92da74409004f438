package listen_test

import (
	"errors"
	"net"
	"os"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/berth-dev/berth/controlplane/listen"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open listens on addresses at a free port, and tries another one if some program has just started to use it.
func open(t *testing.T, addresses ...string) (*listen.Listener, int) {
	t.Helper()
	var listener *listen.Listener
	port, err := 0, error(syscall.EADDRINUSE)
	for errors.Is(err, syscall.EADDRINUSE) {
		probe, probeErr := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, probeErr)
		port = probe.Addr().(*net.TCPAddr).Port
		require.NoError(t, probe.Close())
		listener, err = listen.Open(t.Context(), addresses, port)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	return listener, port
}

func TestAcceptsFromEveryAddress(t *testing.T) {
	listener, port := open(t, "127.0.0.1", "127.0.0.2")
	require.Equal(t, "127.0.0.1:"+strconv.Itoa(port), listener.Addr().String(), "the first is the listener's own")
	require.Len(t, listener.Addrs(), 2)
	for _, address := range []string{"127.0.0.2", "127.0.0.1", "127.0.0.2"} {
		dialled, err := net.Dial("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
		require.NoError(t, err)
		served, err := listener.Accept()
		require.NoError(t, err)
		require.Equal(t, dialled.RemoteAddr().String(), served.LocalAddr().String())
		require.IsType(t, &net.TCPConn{}, served, "kube-apiserver sets keep-alive on it")
		require.NoError(t, served.Close())
		require.NoError(t, dialled.Close())
	}
}

func TestAcceptsFromAnInheritedSocket(t *testing.T) {
	outside, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	file, err := outside.(*net.TCPListener).File()
	require.NoError(t, err)
	require.NoError(t, outside.Close())
	listener, _ := open(t, "127.0.0.1")
	require.NoError(t, listener.Inherit(file))
	dialled, err := net.Dial("tcp", outside.Addr().String())
	require.NoError(t, err)
	served, err := listener.Accept()
	require.NoError(t, err)
	require.Equal(t, dialled.RemoteAddr().String(), served.LocalAddr().String())
	require.NoError(t, errors.Join(served.Close(), dialled.Close()))

	plain, err := os.Open(t.TempDir())
	require.NoError(t, err)
	require.ErrorContains(t, listener.Inherit(plain), "inherited socket")
}

func TestCloseEndsAWaitingAccept(t *testing.T) {
	listener, port := open(t, "127.0.0.1", "127.0.0.2")
	ended := make(chan error)
	go func() {
		_, err := listener.Accept()
		ended <- err
	}()
	require.NoError(t, listener.Close())
	require.ErrorIs(t, <-ended, net.ErrClosed)
	require.NoError(t, listener.Close(), "closing twice is allowed")
	_, err := net.Dial("tcp", net.JoinHostPort("127.0.0.2", strconv.Itoa(port)))
	require.Error(t, err)
}

func TestUnacceptedConnectionIsClosed(t *testing.T) {
	listener, port := open(t, "127.0.0.1", "127.0.0.2")
	var conns []net.Conn
	for range 3 {
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.2", strconv.Itoa(port)))
		require.NoError(t, err)
		conns = append(conns, conn)
	}
	first, err := listener.Accept()
	require.NoError(t, err)
	require.NoError(t, first.Close())
	require.NoError(t, listener.Close())
	for _, conn := range conns {
		_, err := conn.Read(make([]byte, 1))
		require.Error(t, err, "the peer must learn that it is not served")
		require.NoError(t, conn.Close())
	}
}

func TestTakenAddressIsNamedAndNothingStaysOpen(t *testing.T) {
	holder, port := open(t, "127.0.0.2")
	_, err := listen.Open(t.Context(), []string{"127.0.0.1", "127.0.0.2"}, port)
	require.ErrorContains(t, err, "127.0.0.2:"+strconv.Itoa(port))
	require.ErrorContains(t, err, "another process")
	require.NoError(t, holder.Close())

	again, err := listen.Open(t.Context(), []string{"127.0.0.1", "127.0.0.2"}, port)
	require.NoError(t, err, "the failed attempt has released 127.0.0.1")
	require.NoError(t, again.Close())
}

func TestAddressOfAnotherMachineIsExplained(t *testing.T) {
	_, err := listen.Open(t.Context(), []string{"192.0.2.254"}, 17999)
	require.ErrorContains(t, err, "192.0.2.254:17999")
	require.ErrorContains(t, err, "no interface")
	_, err = listen.Open(t.Context(), nil, 1)
	require.Error(t, err)
}
