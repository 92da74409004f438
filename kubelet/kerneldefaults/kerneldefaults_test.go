package kerneldefaults

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOtherValuesAreFoundAndSet(t *testing.T) {
	root := t.TempDir()
	for name, value := range wanted() {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(value+"\n"), 0o600))
	}
	require.NoError(t, Check(root))
	require.NoError(t, os.WriteFile(filepath.Join(root, "kernel/panic"), []byte("0\n"), 0o600))
	require.EqualError(t, Check(root), "sysctl kernel.panic is 0: want 10")
	require.NoError(t, Set(root))
	require.NoError(t, Check(root))
	require.NoError(t, os.Remove(filepath.Join(root, "kernel/panic")))
	require.ErrorContains(t, Set(root), "read sysctl kernel.panic")
}
