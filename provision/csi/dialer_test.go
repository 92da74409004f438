package csi

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
)

func TestDialerPausesLongerAndLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDialer(filepath.Join(t.TempDir(), "missing.sock"), clock.RealClock{})
		pauses := func(count int) (out []time.Duration) {
			for range count {
				began := time.Now()
				_, err := d.dial(t.Context(), "")
				require.ErrorContains(t, err, "missing.sock")
				out = append(out, time.Since(began))
			}
			return out
		}
		const ms = time.Millisecond
		require.Equal(t, []time.Duration{
			0, 100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 5 * time.Second, 5 * time.Second,
		}, pauses(9))

		time.AfterFunc(time.Second, d.created.Notify)
		require.Equal(t, []time.Duration{time.Second, 100 * ms}, pauses(2), "a socket that was created is tried at once")
		d.created.Notify()
		require.Equal(t, []time.Duration{0, 100 * ms}, pauses(2), "also one that was created between two tries")
		d.proven()
		require.Equal(t, []time.Duration{0, 100 * ms}, pauses(2))

		ctx, cancel := context.WithTimeout(t.Context(), ms)
		defer cancel()
		_, err := d.dial(ctx, "")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "missing.sock")
	})
}

// A program that accepts connections and closes them is not asked more often than one that does not listen.
func TestDialerPausesForAPeerThatHangsUp(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	d := newDialer(socket, clock.RealClock{})
	for range 2 {
		conn, err := d.dial(t.Context(), "")
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
	require.Equal(t, 2*dialDelayMin, d.delay)
}
