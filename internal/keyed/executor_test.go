package keyed_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/keyed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBroken = errors.New("broken")

// startBlocked starts an operation that stays pending until release is called.
func startBlocked(t *testing.T, e *keyed.Executor, key keyed.Key) (release func()) {
	t.Helper()
	gate := make(chan struct{})
	require.NoError(t, e.Start(t.Context(), key, "hold", func(context.Context) error { <-gate; return nil }, nil))
	return func() { close(gate); e.Wait() }
}

func TestConflicts(t *testing.T) {
	for _, test := range []struct {
		name     string
		first    keyed.Key
		second   keyed.Key
		conflict bool
	}{
		{"same volume", keyed.Key{Object: "v"}, keyed.Key{Object: "v"}, true},
		{"other volume", keyed.Key{Object: "v"}, keyed.Key{Object: "w"}, false},
		{"volume then node", keyed.Key{Object: "v"}, keyed.Key{Object: "v", Node: "a"}, true},
		{"node then volume", keyed.Key{Object: "v", Node: "a"}, keyed.Key{Object: "v"}, true},
		{"same node", keyed.Key{Object: "v", Node: "a"}, keyed.Key{Object: "v", Node: "a"}, true},
		{"other node", keyed.Key{Object: "v", Node: "a"}, keyed.Key{Object: "v", Node: "b"}, false},
		{"no volume", keyed.Key{}, keyed.Key{}, false},
		{"no volume, same node", keyed.Key{Node: "a"}, keyed.Key{Node: "a"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := keyed.New(keyed.Deps{}, keyed.Config{})
			release := startBlocked(t, e, test.first)
			require.Equal(t, test.conflict, e.IsOperationPending(test.second))
			err := e.Start(t.Context(), test.second, "other", func(context.Context) error { return nil }, nil)
			if test.conflict {
				require.ErrorIs(t, err, keyed.ErrAlreadyExists)
			} else {
				require.NoError(t, err)
			}
			release()
			require.False(t, e.IsOperationPending(test.second), "the key must be free when the operation is over")
		})
	}
}

func TestBackoffDoublesToTheLimitAndEndsWithSuccess(t *testing.T) {
	clock := testclock.NewFakeClock(time.Now())
	e := keyed.New(keyed.Deps{Clock: clock}, keyed.Config{})
	key := keyed.Key{Object: "v", Node: "n"}
	want := 500 * time.Millisecond
	for range 12 {
		require.NoError(t, e.Start(t.Context(), key, "attach", func(context.Context) error { return errBroken }, nil))
		e.Wait()
		var backoff *keyed.BackoffError
		err := e.Start(t.Context(), key, "attach", func(context.Context) error { return nil }, nil)
		require.ErrorAs(t, err, &backoff)
		require.ErrorIs(t, err, errBroken)
		require.Equal(t, want, backoff.RetryAfter)
		require.Equal(t, want, e.RetryAfter(key, "attach"))
		clock.Step(want)
		want = min(2*want, 122*time.Second)
	}
	require.NoError(t, e.Start(t.Context(), key, "attach", func(context.Context) error { return nil }, nil))
	e.Wait()
	require.Error(t, e.Do(t.Context(), key, "attach", func(context.Context) error { return errBroken }))
	require.Equal(t, 500*time.Millisecond, e.RetryAfter(key, "attach"), "a success must begin the count anew")
}

func TestAnotherKindDoesNotWaitForTheFirstKindsBackoff(t *testing.T) {
	clock := testclock.NewFakeClock(time.Now())
	e := keyed.New(keyed.Deps{Clock: clock}, keyed.Config{})
	key := keyed.Key{Object: "v"}
	for range 4 {
		_ = e.Do(t.Context(), key, "detach", func(context.Context) error { return errBroken })
	}
	require.Equal(t, 4*time.Second, e.RetryAfter(key, "detach"))
	require.Zero(t, e.RetryAfter(key, "attach"))
	require.NoError(t, e.Start(t.Context(), key, "attach", func(context.Context) error { return errBroken }, nil))
	e.Wait()
	require.Zero(t, e.RetryAfter(key, "detach"), "an attach must end the detach's pause")
	require.Equal(t, 500*time.Millisecond, e.RetryAfter(key, "attach"))
	e.ForgetFailures(key)
	require.Zero(t, e.RetryAfter(key, "attach"))
}

func TestOldFailuresAreForgotten(t *testing.T) {
	clock := testclock.NewFakeClock(time.Now())
	e := keyed.New(keyed.Deps{Clock: clock}, keyed.Config{})
	key := keyed.Key{Object: "v"}
	for range 3 {
		_ = e.Do(t.Context(), key, "attach", func(context.Context) error { return errBroken })
	}
	clock.Step(2*keyed.DefaultMaxBackoff + time.Second)
	_ = e.Do(t.Context(), key, "attach", func(context.Context) error { return errBroken })
	require.Equal(t, 500*time.Millisecond, e.RetryAfter(key, "attach"), "the fourth failure must count as a first one")
}

func TestPanicIsAFailure(t *testing.T) {
	e := keyed.New(keyed.Deps{}, keyed.Config{})
	var got error
	err := e.Start(t.Context(), keyed.Key{Object: "v"}, "attach",
		func(context.Context) error { panic("boom") }, func(err error) { got = err })
	require.NoError(t, err)
	e.Wait()
	require.ErrorContains(t, got, "attach of v panicked: boom")
	require.NotZero(t, e.RetryAfter(keyed.Key{Object: "v"}, "attach"))
}

func TestCallbackMayStartTheNextOperation(t *testing.T) {
	e := keyed.New(keyed.Deps{}, keyed.Config{})
	key := keyed.Key{Object: "v"}
	var second error
	ran := false
	err := e.Start(t.Context(), key, "one", func(context.Context) error { return nil }, func(error) {
		second = e.Start(t.Context(), key, "two", func(context.Context) error { ran = true; return nil }, nil)
	})
	require.NoError(t, err)
	e.Wait()
	require.NoError(t, second)
	require.True(t, ran)
}

func TestDoSerialisesAndLimitBounds(t *testing.T) {
	e := keyed.New(keyed.Deps{}, keyed.Config{Limit: 3})
	var perVolume [5]atomic.Int32
	var all atomic.Int32
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			v := i % len(perVolume)
			err := e.Do(t.Context(), keyed.Key{Object: fmt.Sprint(v)}, "mount", func(context.Context) error {
				if n := perVolume[v].Add(1); n != 1 {
					return fmt.Errorf("%d operations on one volume", n)
				}
				if n := all.Add(1); n > 3 {
					return fmt.Errorf("%d operations at once", n)
				}
				all.Add(-1)
				perVolume[v].Add(-1)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestCancelledBeforeItBeginsIsNoFailure(t *testing.T) {
	e := keyed.New(keyed.Deps{}, keyed.Config{Limit: 1})
	release := startBlocked(t, e, keyed.Key{Object: "v"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	key := keyed.Key{Object: "w"}
	require.ErrorIs(t, e.Do(ctx, key, "mount", func(context.Context) error { return nil }), context.Canceled)
	require.ErrorIs(t, e.Do(ctx, keyed.Key{Object: "v"}, "mount",
		func(context.Context) error { return nil }), context.Canceled)
	require.Zero(t, e.RetryAfter(key, "mount"))
	release()
}
