package supervisor

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestProgramsThatReplyAtOnce has a program that replies and closes each connection, often before the check goes on.
func TestProgramsThatReplyAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "health.sock")
	listener, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("ok\n"))
			_ = conn.Close()
		}
	}()
	h := Health{Network: "unix", Address: path, Timeout: time.Minute}
	for range 2000 {
		require.NoError(t, h.check(t.Context()))
	}
}
