package main

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/controlplane/atomicfile"
	"github.com/berth-dev/berth/controlplane/config"
)

// TestComponentsLeaveTheNodeTheProcessors starts a component with an event, after a while without one, and at the end.
func TestComponentsLeaveTheNodeTheProcessors(t *testing.T) {
	started := make(chan context.Context, 1)
	run := func(ctx context.Context, _ func()) error { started <- ctx; return nil }
	event := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- after(event, time.Hour, run)(t.Context(), nil) }()
	select {
	case <-started:
		t.Error("it started before the event")
	default:
	}
	close(event)
	<-started
	require.NoError(t, <-ended)

	never := make(chan struct{})
	require.NoError(t, after(never, time.Millisecond, run)(t.Context(), nil))
	<-started
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, after(never, time.Hour, run)(ctx, nil))
	require.Error(t, (<-started).Err(), "it ends by itself")
}

func TestASocketShowsACrash(t *testing.T) {
	c := &config.Config{RunDir: t.TempDir()}
	require.False(t, hasCrashed(c))
	require.NoError(t, atomicfile.Dir(filepath.Dir(c.EtcdSocket())))
	require.NoError(t, atomicfile.Write(c.EtcdSocket(), nil))
	require.True(t, hasCrashed(c))
}
