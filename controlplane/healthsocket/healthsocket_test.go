package healthsocket

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestOnlyAHealthyProcessReplies(t *testing.T) {
	path := filepath.Join(t.TempDir(), "health.sock")
	var sick atomic.Bool
	check := func(context.Context) error {
		if sick.Load() {
			return errors.New("stuck")
		}
		return nil
	}
	ask := func() string {
		conn, err := net.Dial("unix", path)
		require.NoError(t, err)
		defer conn.Close()
		reply, err := io.ReadAll(conn)
		require.NoError(t, err)
		return string(reply)
	}
	for range 2 { // the second replaces what the first has left
		listener, err := Serve(t.Context(), path, check)
		require.NoError(t, err)
		listener.(*net.UnixListener).SetUnlinkOnClose(false)
		require.Equal(t, "ok\n", ask())
		sick.Store(true)
		require.Empty(t, ask())
		sick.Store(false)
		require.NoError(t, listener.Close())
	}
}

// short is a listener of a process that has no descriptors for the first call.
type short struct {
	net.Listener
	failed bool
}

func (s *short) Accept() (net.Conn, error) {
	if !s.failed {
		s.failed = true
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", unix.EMFILE)}
	}
	return s.Listener.Accept()
}

func TestAShortageOfDescriptorsIsOutlasted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "health.sock")
	listener, err := net.Listen("unix", path)
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		accept(t.Context(), &short{Listener: listener}, func(context.Context) error { return nil })
		_ = listener.Close() // what waits in its queue sees the end
	}()
	conn, err := net.Dial("unix", path)
	require.NoError(t, err)
	reply, err := io.ReadAll(conn)
	require.NoError(t, errors.Join(err, conn.Close()))
	require.Equal(t, "ok\n", string(reply))
	require.NoError(t, listener.Close())
	<-ended
}
