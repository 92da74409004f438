package deadlines_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/deadlines"
)

func TestQueueReportsWhetherTheTimerHasToChange(t *testing.T) {
	q, start := deadlines.New[string](), time.Unix(0, 0)
	require.True(t, q.Set("b", start.Add(2)))
	require.False(t, q.Set("c", start.Add(3)))
	require.True(t, q.Set("a", start.Add(1)), "a is the earliest now")
	require.True(t, q.Set("a", start.Add(5)), "a was the earliest")
	require.False(t, q.Set("c", start.Add(4)))
	at, ok := q.Next()
	require.True(t, ok)
	require.Equal(t, start.Add(2), at)
	q.Remove("b")
	require.False(t, q.Has("b"))
	_, ok = q.PopDue(start.Add(3))
	require.False(t, ok)
	for _, want := range []string{"c", "a"} {
		key, ok := q.PopDue(start.Add(5))
		require.True(t, ok)
		require.Equal(t, want, key)
	}
	_, ok = q.Next()
	require.False(t, ok)
}

// TestQueueAgainstMap compares the queue with a map that is searched, under random changes.
func TestQueueAgainstMap(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	now := time.Unix(0, 0)
	q, model := deadlines.New[int](), map[int]time.Time{}
	for range 5000 {
		key := random.IntN(20)
		switch random.IntN(4) {
		case 0, 1:
			at := now.Add(time.Duration(random.IntN(20)))
			q.Set(key, at)
			model[key] = at
		case 2:
			q.Remove(key)
			delete(model, key)
		case 3:
			now = now.Add(time.Duration(random.IntN(5)))
			var want, got []int
			for key, at := range model {
				if !at.After(now) {
					want = append(want, key)
					delete(model, key)
				}
			}
			if key, ok := q.PopDue(now); ok {
				got = append(got, key)
			}
			got = append(got, q.PopAllDue(now)...)
			require.ElementsMatch(t, want, got)
		}
		require.Equal(t, len(model), q.Len())
		_, has := model[key]
		require.Equal(t, has, q.Has(key))
	}
}
