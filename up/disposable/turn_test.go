package disposable

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/filelock"
)

func TestTurns(t *testing.T) {
	root := t.TempDir()
	turns := make([]*turn, runtime.GOMAXPROCS(0))
	for i := range turns {
		var err error
		turns[i], err = takeTurn(t.Context(), root)
		require.NoError(t, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := takeTurn(ended, root)
	require.ErrorIs(t, err, context.Canceled, "each processor has a cluster")

	next := make(chan *turn)
	go func() {
		turn, err := takeTurn(t.Context(), root)
		if err != nil {
			t.Error(err)
		}
		next <- turn
	}()
	turns[0].end()
	turns = append(turns, <-next)
	unshared := make(chan error)
	go func() { unshared <- filelock.AwaitUnshared(t.Context(), root+"/"+startLock) }()
	for _, turn := range turns {
		select {
		case <-unshared:
			t.Error("what follows the Nodes waits for all of them")
		default:
		}
		turn.stop() // twice, for the first one
	}
	require.NoError(t, <-unshared)
}

func TestSaysNodeReady(t *testing.T) {
	require.True(t, SaysNodeReady("  node node                 ready      0.6 s"))
	require.False(t, SaysNodeReady("  control plane   ready   0.5 s"))
	require.False(t, SaysNodeReady("node is"))
}
