package lazyqueue_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/lazyqueue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newQueue() *lazyqueue.Queue[string] {
	return lazyqueue.New[string](lazyqueue.Config{
		InitialDelay: time.Millisecond, MaxDelay: time.Second, Clock: clock.RealClock{},
	})
}

func TestNothingRunsBeforeStart(t *testing.T) {
	q := newQueue()
	q.Add("a")
	q.AddAfter("a", time.Hour)
	goleak.VerifyNone(t, goleak.IgnoreCurrent())
	_, quit := q.Get()
	require.True(t, quit, "there is nothing to wait for")
	q.ShutDown()
	q.Start()
	q.Add("b")
	_, quit = q.Get()
	require.True(t, quit, "it was shut down before it started")
}

func TestEarlyKeysAreKept(t *testing.T) {
	q := newQueue()
	q.AddAfter("a", time.Hour)
	q.Add("a")
	q.AddAfter("later", time.Hour)
	q.Start()
	key, quit := q.Get()
	require.False(t, quit)
	require.Equal(t, "a", key)
	q.AddRateLimited("a") // while it is processed
	q.Done("a")
	key, _ = q.Get()
	require.Equal(t, "a", key)
	q.Forget("a")
	q.Done("a")
	q.ShutDown()
	_, quit = q.Get()
	require.True(t, quit)
}
