package accept

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// short is a listener of a process that has no descriptors for the first calls.
type short struct {
	net.Listener
	left int
}

func (s *short) Accept() (net.Conn, error) {
	if s.left > 0 {
		s.left--
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", unix.EMFILE)}
	}
	return s.Listener.Accept()
}

func TestNextOutlastsAShortageOfDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	require.NoError(t, err)
	client, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer client.Close()
	conn, err := Next(t.Context(), &short{Listener: listener, left: 2})
	require.NoError(t, err)
	require.NoError(t, conn.Close())

	require.NoError(t, listener.Close())
	_, err = Next(t.Context(), &short{Listener: listener, left: 1})
	require.ErrorIs(t, err, net.ErrClosed)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Next(ended, &short{Listener: listener, left: 1 << 30})
	require.ErrorIs(t, err, unix.EMFILE)
}
