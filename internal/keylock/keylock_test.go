package keylock

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBusyKeyDelaysNoOther(t *testing.T) {
	var locks Locks[int]
	unlock, err := locks.Lock(t.Context(), 1)
	require.NoError(t, err)
	other, err := locks.Lock(t.Context(), 2)
	require.NoError(t, err)
	other()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = locks.Lock(ctx, 1)
	require.ErrorIs(t, err, context.Canceled)
	next := make(chan func())
	go func() {
		unlock, err := locks.Lock(context.Background(), 1)
		if err != nil {
			panic(err)
		}
		next <- unlock
	}()
	unlock()
	(<-next)()
	require.Empty(t, locks.held)
}
