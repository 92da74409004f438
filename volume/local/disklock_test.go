package local

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBusyDeviceDelaysNoOther has one device hang: another is used at once, and who waits for the first one can give up.
func TestBusyDeviceDelaysNoOther(t *testing.T) {
	var d diskMounter
	unlock, err := d.lock(t.Context(), 1)
	require.NoError(t, err)
	other, err := d.lock(t.Context(), 2)
	require.NoError(t, err)
	other()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = d.lock(ctx, 1)
	require.ErrorIs(t, err, context.Canceled)
	next := make(chan func())
	go func() {
		unlock, err := d.lock(context.Background(), 1)
		if err != nil {
			panic(err)
		}
		next <- unlock
	}()
	unlock()
	(<-next)()
	require.Empty(t, d.busy)
}
