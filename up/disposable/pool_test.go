package disposable

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fakeEnder records how a cluster ended.
type fakeEnder struct {
	ends chan endRequest
	err  error
}

func (f *fakeEnder) end(timeout time.Duration, force bool) error {
	f.ends <- endRequest{timeout, force}
	return f.err
}

func (f *fakeEnder) discard(timeout time.Duration) error { return f.end(timeout, true) }

// fakeStarts starts clusters without processes: the third start fails.
type fakeStarts struct {
	mu    sync.Mutex
	count int
	ends  chan endRequest
}

func (f *fakeStarts) start(context.Context) (*Cluster, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	if f.count == 3 {
		return nil, errors.New("no memory")
	}
	return &Cluster{berth: "/bin/berth", dir: strconv.Itoa(f.count), pid: f.count, ender: &fakeEnder{f.ends, errors.New("it was slow")}}, nil
}

func TestPoolGivesEachClusterOnce(t *testing.T) {
	dir := t.TempDir()
	starts := &fakeStarts{ends: make(chan endRequest, 16)}
	pool, err := NewPool(t.Context(), 1, dir, starts.start)
	require.NoError(t, err)
	socket := filepath.Join(dir, SocketName)
	first, err := Take(t.Context(), socket)
	require.NoError(t, err)
	require.Equal(t, 1, first.PID())
	require.Equal(t, "1/data/admin.kubeconfig", first.Kubeconfig())
	second, err := Take(t.Context(), socket)
	require.NoError(t, err)
	require.Equal(t, "2", second.Dir())
	_, err = Take(t.Context(), socket)
	require.ErrorContains(t, err, "take a cluster of the pool: no memory")
	fourth, err := Take(t.Context(), socket)
	require.NoError(t, err, "a failed start is not the last")
	require.Equal(t, "4", fourth.Dir())

	require.EqualError(t, first.Stop(time.Minute), "it was slow")
	require.Equal(t, endRequest{time.Minute, false}, <-starts.ends)
	require.EqualError(t, second.End(time.Second), "it was slow")
	require.Equal(t, endRequest{time.Second, true}, <-starts.ends)
	require.NoError(t, fourth.ender.(*taken).conn.Close()) // as the kernel does for a process that was killed
	require.Equal(t, endRequest{0, true}, <-starts.ends)
	_, err = net.Dial("unix", socket) // it goes away while it waits
	require.NoError(t, err)
	require.NoError(t, pool.Close())
	require.NotEmpty(t, starts.ends, "those that are ready end with the pool")
	_, err = Take(t.Context(), socket)
	require.Error(t, err)
	_, err = NewPool(t.Context(), 0, dir, starts.start)
	require.ErrorContains(t, err, "want at least one")
}

func TestTakingEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	pool, err := NewPool(t.Context(), 1, dir, func(ctx context.Context) (*Cluster, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Take(ctx, filepath.Join(dir, SocketName))
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, pool.Close())
}
