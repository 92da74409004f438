package controller

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

func testQueue() (*queue[string], *clocktesting.FakeClock) {
	clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
	return newQueue[string](clock, time.Second, 8*time.Second), clock
}

// nextKey gets a key that must be ready.
func nextKey(t *testing.T, q *queue[string]) string {
	t.Helper()
	s := q.stats()
	require.Positive(t, s.depth[priorityLive]+s.depth[priorityBackground], "nothing is ready")
	key, _, ok := q.get()
	require.True(t, ok)
	return key
}

func TestQueueMergesAndKeepsOrder(t *testing.T) {
	q, _ := testQueue()
	for _, key := range []string{"a", "b", "a", "c", "b"} {
		q.add(key, priorityLive)
	}
	for _, want := range []string{"a", "b", "c"} {
		require.Equal(t, want, nextKey(t, q))
		q.done(want, outcome{})
	}
	require.Zero(t, q.stats().depth)
	require.Empty(t, q.items)
}

func TestQueueRunsAKeyAddedWhileRunningOnceMore(t *testing.T) {
	q, _ := testQueue()
	q.add("a", priorityLive)
	require.Equal(t, "a", nextKey(t, q))
	q.add("a", priorityBackground)
	q.add("a", priorityLive)
	q.add("a", priorityBackground)
	require.Zero(t, q.stats().depth, "it must not run twice at once")
	q.done("a", outcome{})
	require.Equal(t, 1, q.stats().depth[priorityLive])
	require.Equal(t, "a", nextKey(t, q))
	q.done("a", outcome{})
	require.Empty(t, q.items)
}

func TestQueuePutsLiveBeforeBackground(t *testing.T) {
	q, _ := testQueue()
	for _, key := range []string{"a", "b", "c"} {
		q.add(key, priorityBackground)
	}
	q.add("x", priorityLive)
	q.add("b", priorityLive)       // raised
	q.add("x", priorityBackground) // not lowered
	for _, want := range []string{"x", "b", "a", "c"} {
		require.Equal(t, want, nextKey(t, q))
	}
}

func TestQueueDoesNotStarveBackground(t *testing.T) {
	q, _ := testQueue()
	q.add("background", priorityBackground)
	for i := range 100 {
		q.add(fmt.Sprint(i), priorityLive)
	}
	turn := 0
	for nextKey(t, q) != "background" {
		turn++
	}
	require.Equal(t, maxLiveStreak, turn)
}

func TestQueueBackoff(t *testing.T) {
	q, clock := testQueue()
	q.add("a", priorityLive)
	fail := func() {
		require.Equal(t, "a", nextKey(t, q))
		q.done("a", outcome{rateLimited: true})
	}
	for _, delay := range []time.Duration{1, 2, 4, 8, 8} {
		fail()
		wait, pending := q.promoteDue()
		require.True(t, pending)
		require.Equal(t, delay*time.Second, wait)
		require.Equal(t, 1, q.stats().limited)
		clock.Step(wait)
		q.promoteDue()
		require.Zero(t, q.stats().limited)
	}
	require.Equal(t, "a", nextKey(t, q))
	q.done("a", outcome{requeueAfter: time.Minute}) // success forgets the failures
	wait, _ := q.promoteDue()
	require.Equal(t, time.Minute, wait)
	q.add("a", priorityLive)
	fail()
	wait, _ = q.promoteDue()
	require.Equal(t, time.Second, wait)
	require.Equal(t, uint64(6), q.stats().retries)
	require.Equal(t, 24*time.Second, q.stats().waited)
}

// setClock is a clock whose time of day was set by some amount. As of the real one, Since measures what has passed.
type setClock struct {
	*clocktesting.FakeClock
	by time.Duration
}

func (c *setClock) Now() time.Time { return c.FakeClock.Now().Add(c.by) }

func TestQueueDelaysDoNotDependOnTheTimeOfDay(t *testing.T) {
	clock := &setClock{FakeClock: clocktesting.NewFakeClock(time.Unix(1000, 0))}
	q := newQueue[string](clock, time.Second, 8*time.Second)
	q.add("a", priorityLive)
	clock.by = -time.Hour
	require.Zero(t, q.stats().oldest)
	require.Equal(t, "a", nextKey(t, q))
	q.done("a", outcome{rateLimited: true})
	clock.by = -2 * time.Hour
	wait, _ := q.promoteDue()
	require.Equal(t, time.Second, wait)
	clock.by = time.Hour
	wait, _ = q.promoteDue()
	require.Equal(t, time.Second, wait)
	clock.Step(wait)
	q.promoteDue()
	require.Equal(t, "a", nextKey(t, q))
}

func TestQueueLongDelays(t *testing.T) {
	q, _ := testQueue()
	q.add("a", priorityLive)
	require.Equal(t, "a", nextKey(t, q))
	q.done("a", outcome{requeueAfter: math.MaxInt64})
	q.addAfter("b", math.MaxInt64)
	q.promoteDue()
	require.Zero(t, q.stats().depth, "neither is due for centuries")
	require.Equal(t, 2, q.stats().delayed)
}

func TestQueueRetriesWhatFailed(t *testing.T) {
	q, clock := testQueue()
	for _, key := range []string{"failed", "later", "running"} {
		q.add(key, priorityLive)
		require.Equal(t, key, nextKey(t, q))
	}
	q.done("failed", outcome{rateLimited: true})
	q.done("later", outcome{requeueAfter: time.Hour})
	q.retryFailed()
	require.Equal(t, "failed", nextKey(t, q))
	q.done("failed", outcome{})
	require.Zero(t, q.stats().depth[priorityLive], "what did not fail keeps its time")
	q.done("running", outcome{rateLimited: true})
	require.Equal(t, "running", nextKey(t, q), "it may have failed already")
	q.done("running", outcome{})
	clock.Step(time.Hour)
	q.promoteDue()
	require.Equal(t, "later", nextKey(t, q))
}

func TestQueueRunReplacesWhatItsResultAskedFor(t *testing.T) {
	q, clock := testQueue()
	q.add("a", priorityLive)
	nextKey(t, q)
	q.done("a", outcome{requeueAfter: time.Second})
	q.addAfter("a", 3*time.Second)
	q.addAfter("a", 4*time.Second) // later than what is asked for already
	q.add("a", priorityLive)
	nextKey(t, q)
	q.done("a", outcome{})
	wait, pending := q.promoteDue()
	require.True(t, pending, "the run that addAfter requested stays")
	require.Equal(t, 3*time.Second, wait)
	clock.Step(wait)
	_, pending = q.promoteDue()
	require.False(t, pending)
	require.Equal(t, "a", nextKey(t, q))
	q.done("a", outcome{})
	require.Empty(t, q.items)
}

func TestQueueDueWhileRunning(t *testing.T) {
	q, clock := testQueue()
	q.addAfter("a", time.Second)
	q.add("a", priorityLive)
	nextKey(t, q)
	clock.Step(time.Second)
	q.promoteDue()
	require.Zero(t, q.stats().depth)
	q.done("a", outcome{})
	require.Equal(t, 1, q.stats().depth[priorityLive])
}

func TestQueueStats(t *testing.T) {
	q, clock := testQueue()
	q.add("a", priorityLive)
	clock.Step(time.Second)
	q.add("b", priorityBackground)
	clock.Step(time.Second)
	require.Equal(t, 2*time.Second, q.stats().oldest)
	_, waited, _ := q.get()
	require.Equal(t, 2*time.Second, waited)
	nextKey(t, q)
	clock.Step(3 * time.Second)
	s := q.stats()
	require.Equal(t, 2, s.running)
	require.Equal(t, 3*time.Second, s.longest)
	require.Equal(t, 6*time.Second, s.unfinished)
	require.Zero(t, s.oldest)
	require.Equal(t, 3*time.Second, q.done("a", outcome{}))
}

func TestQueueClosed(t *testing.T) {
	q, _ := testQueue()
	q.add("a", priorityLive)
	q.close()
	_, _, ok := q.get()
	require.False(t, ok)
	q.add("b", priorityLive)
	q.addAfter("c", time.Second)
	require.Len(t, q.items, 1)
}

// TestQueueConcurrently lets producers and workers loose on a queue and checks what it promises: one key is never with
// two workers, an add is never lost, and in the end nothing is left.
func TestQueueConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue[int](clock.RealClock{}, time.Millisecond, time.Second)
		const keys = 50
		var mu sync.Mutex
		var running [keys]bool
		var wanted, seen [keys]int // wanted is set before add, seen at a run's start
		var workers, producers sync.WaitGroup
		workers.Go(func() { q.runTimer(t.Context()) })
		for range 8 {
			workers.Go(func() {
				random := rand.New(rand.NewPCG(rand.Uint64(), 0))
				for {
					key, _, ok := q.get()
					if !ok {
						return
					}
					mu.Lock()
					if running[key] {
						t.Errorf("key %d is with two workers", key)
					}
					running[key], seen[key] = true, wanted[key]
					mu.Unlock()
					time.Sleep(time.Duration(random.IntN(3)) * time.Millisecond)
					mu.Lock()
					running[key] = false
					mu.Unlock()
					q.done(key, outcome{rateLimited: random.IntN(4) == 0, requeueAfter: time.Duration(random.IntN(2)) * time.Millisecond})
				}
			})
		}
		for producer := range 8 {
			producers.Go(func() {
				random := rand.New(rand.NewPCG(rand.Uint64(), uint64(producer)))
				for range 500 {
					key := random.IntN(keys)
					mu.Lock()
					wanted[key]++
					mu.Unlock()
					switch random.IntN(4) {
					case 0:
						q.add(key, priorityBackground)
					case 1:
						q.addAfter(key, time.Duration(random.IntN(5))*time.Millisecond)
					default:
						q.add(key, priorityLive)
					}
					time.Sleep(time.Duration(random.IntN(2)) * time.Millisecond)
				}
			})
		}
		producers.Wait()
		time.Sleep(time.Hour) // let every delay pass
		mu.Lock()
		require.Equal(t, wanted, seen)
		mu.Unlock()
		q.close()
		t.Cleanup(workers.Wait)
	})
}

func BenchmarkQueueAddGetDone(b *testing.B) {
	q := newQueue[int](clock.RealClock{}, time.Millisecond, time.Second)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		q.add(i&1023, priorityLive)
		key, _, _ := q.get()
		q.done(key, outcome{})
	}
}

func BenchmarkQueueMillionKeys(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		q := newQueue[int](clock.RealClock{}, time.Millisecond, time.Second)
		for i := range 1_000_000 {
			q.add(i, priorityBackground)
		}
	}
}
