package healthsocket_test

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/controlplane/healthsocket"
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
		listener, err := healthsocket.Serve(t.Context(), path, check)
		require.NoError(t, err)
		listener.(*net.UnixListener).SetUnlinkOnClose(false)
		require.Equal(t, "ok\n", ask())
		sick.Store(true)
		require.Empty(t, ask())
		sick.Store(false)
		require.NoError(t, listener.Close())
	}
}
