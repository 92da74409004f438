package up

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHalfClosedConnectionsLastAnHour(t *testing.T) {
	setting := filepath.Join(t.TempDir(), "nf_conntrack_tcp_timeout_close_wait")
	require.Zero(t, closeWait(setting), "a kernel without the setting")
	for value, want := range map[string]time.Duration{"60\n": time.Hour, "3600\n": 0, "7200\n": 0, "": 0} {
		require.NoError(t, os.WriteFile(setting, []byte(value), 0o600))
		require.Equal(t, want, closeWait(setting), "%q", value)
	}
}
