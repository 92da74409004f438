package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/controlplane/atomicfile"
	"github.com/berth-dev/berth/controlplane/config"
)

func TestASocketShowsACrash(t *testing.T) {
	c := &config.Config{RunDir: t.TempDir()}
	require.False(t, hasCrashed(c))
	require.NoError(t, atomicfile.Dir(filepath.Dir(c.EtcdSocket())))
	require.NoError(t, atomicfile.Write(c.EtcdSocket(), nil))
	require.True(t, hasCrashed(c))
}
