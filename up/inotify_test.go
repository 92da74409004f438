package up

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRaiseInotifyLimit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "max_user_instances")
	for _, c := range []struct{ before, after, said string }{
		{"128\n", "1024", "from 128 to 1024"}, {"1024\n", "1024\n", ""}, {"8192\n", "8192\n", ""},
	} {
		require.NoError(t, os.WriteFile(file, []byte(c.before), 0o600))
		said, err := raiseInotifyLimit(file, 1024)
		require.NoError(t, err)
		require.Contains(t, said, c.said)
		require.Equal(t, c.said == "", said == "")
		after, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, c.after, string(after))
	}
	require.NoError(t, os.WriteFile(file, []byte("many"), 0o600))
	_, err := raiseInotifyLimit(file, 1024)
	require.ErrorContains(t, err, file)
	_, err = raiseInotifyLimit(file+"x", 1024)
	require.ErrorIs(t, err, os.ErrNotExist)
}
