package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestComponentsLeaveTheNodeTheProcessors starts a component with an event, after a while without one, and at the end.
func TestComponentsLeaveTheNodeTheProcessors(t *testing.T) {
	started := make(chan context.Context, 1)
	run := func(ctx context.Context, _ func()) error { started <- ctx; return nil }
	event := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- headStart{reported: event, limit: time.Hour}.before(run)(t.Context(), nil) }()
	select {
	case <-started:
		t.Error("it started before the event")
	default:
	}
	close(event)
	<-started
	require.NoError(t, <-ended)

	never := make(chan struct{})
	require.NoError(t, headStart{reported: never, limit: time.Millisecond}.before(run)(t.Context(), nil))
	<-started
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, headStart{reported: never, limit: time.Hour}.before(run)(ctx, nil))
	require.Error(t, (<-started).Err(), "it ends by itself")
	require.NoError(t, headStart{reported: never}.before(run)(t.Context(), nil), "nothing comes first")
	<-started
}

func TestOtherClustersComeFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	other, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, unix.Flock(int(other.Fd()), unix.LOCK_SH))
	event := make(chan struct{})
	close(event)
	waited := make(chan struct{})
	go func() {
		headStart{reported: event, limit: time.Hour, lock: path}.wait(t.Context())
		close(waited)
	}()
	select {
	case <-waited:
		t.Error("another cluster has its turn")
	default:
	}
	require.NoError(t, other.Close())
	<-waited

	headStart{reported: event, limit: time.Hour, lock: path + "missing"}.wait(t.Context()) // a lock that is gone delays nothing
	ctx, cancel := context.WithCancel(t.Context())
	other, err = os.Open(path)
	require.NoError(t, err)
	require.NoError(t, unix.Flock(int(other.Fd()), unix.LOCK_SH))
	cancel()
	headStart{reported: event, limit: time.Hour, lock: path}.wait(ctx)
	require.NoError(t, other.Close())
}
