package filelock

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAwaitUnshared(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	require.NoError(t, AwaitUnshared(t.Context(), path))
	one, err := Share(path)
	require.NoError(t, err)
	two, err := Share(path)
	require.NoError(t, err, "it is shared")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, AwaitUnshared(ended, path), context.Canceled)

	waited := make(chan error)
	go func() { waited <- AwaitUnshared(t.Context(), path) }()
	require.NoError(t, one.Close())
	select {
	case <-waited:
		t.Fatal("one shares it still")
	default:
	}
	require.NoError(t, two.Close())
	require.NoError(t, <-waited)
}

func TestFirstOf(t *testing.T) {
	dir := t.TempDir()
	paths := []string{filepath.Join(dir, "0"), filepath.Join(dir, "1")}
	one, err := FirstOf(t.Context(), paths)
	require.NoError(t, err)
	two, err := FirstOf(t.Context(), paths)
	require.NoError(t, err)
	require.NotEqual(t, one.Name(), two.Name())

	third := make(chan string)
	go func() {
		file, err := FirstOf(t.Context(), paths)
		if err != nil {
			third <- err.Error()
			return
		}
		name := file.Name()
		_ = file.Close()
		third <- name
	}()
	require.NoError(t, two.Close())
	require.Equal(t, two.Name(), <-third)
	require.NoError(t, one.Close())

	_, err = FirstOf(t.Context(), []string{filepath.Join(dir, "missing", "0")})
	require.ErrorContains(t, err, "missing")
}
