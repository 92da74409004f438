package operationexecutor_test

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

	"github.com/berth-dev/berth/volume/operationexecutor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBroken = errors.New("broken")

// startBlocked starts an operation that stays pending until release is called.
func startBlocked(t *testing.T, k *operationexecutor.Keyed, key operationexecutor.Key) (release func()) {
	t.Helper()
	gate := make(chan struct{})
	require.NoError(t, k.Start(t.Context(), key, "hold", func(context.Context) error { <-gate; return nil }, nil))
	return func() { close(gate); k.Wait() }
}

func TestConflicts(t *testing.T) {
	for _, test := range []struct {
		name     string
		first    operationexecutor.Key
		second   operationexecutor.Key
		conflict bool
	}{
		{"same volume", operationexecutor.Key{Object: "v"}, operationexecutor.Key{Object: "v"}, true},
		{"other volume", operationexecutor.Key{Object: "v"}, operationexecutor.Key{Object: "w"}, false},
		{"volume then node", operationexecutor.Key{Object: "v"}, operationexecutor.Key{Object: "v", Node: "a"}, true},
		{"node then volume", operationexecutor.Key{Object: "v", Node: "a"}, operationexecutor.Key{Object: "v"}, true},
		{"same node", operationexecutor.Key{Object: "v", Node: "a"}, operationexecutor.Key{Object: "v", Node: "a"}, true},
		{"other node", operationexecutor.Key{Object: "v", Node: "a"}, operationexecutor.Key{Object: "v", Node: "b"}, false},
		{"no volume", operationexecutor.Key{}, operationexecutor.Key{}, false},
		{"no volume, same node", operationexecutor.Key{Node: "a"}, operationexecutor.Key{Node: "a"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			k := operationexecutor.NewKeyed(operationexecutor.Config{}, operationexecutor.Deps{})
			release := startBlocked(t, k, test.first)
			require.Equal(t, test.conflict, k.IsOperationPending(test.second))
			err := k.Start(t.Context(), test.second, "other", func(context.Context) error { return nil }, nil)
			if test.conflict {
				require.ErrorIs(t, err, operationexecutor.ErrAlreadyExists)
			} else {
				require.NoError(t, err)
			}
			release()
			require.False(t, k.IsOperationPending(test.second), "the key must be free when the operation is over")
		})
	}
}

func TestBackoffDoublesToTheLimitAndEndsWithSuccess(t *testing.T) {
	clock := testclock.NewFakeClock(time.Now())
	k := operationexecutor.NewKeyed(operationexecutor.Config{}, operationexecutor.Deps{Clock: clock})
	key := operationexecutor.Key{Object: "v", Node: "n"}
	want := 500 * time.Millisecond
	for range 12 {
		require.NoError(t, k.Start(t.Context(), key, "attach", func(context.Context) error { return errBroken }, nil))
		k.Wait()
		var backoff *operationexecutor.BackoffError
		err := k.Start(t.Context(), key, "attach", func(context.Context) error { return nil }, nil)
		require.ErrorAs(t, err, &backoff)
		require.ErrorIs(t, err, errBroken)
		require.Equal(t, want, backoff.RetryAfter)
		require.Equal(t, want, k.RetryAfter(key, "attach"))
		clock.Step(want)
		want = min(2*want, 122*time.Second)
	}
	require.NoError(t, k.Start(t.Context(), key, "attach", func(context.Context) error { return nil }, nil))
	k.Wait()
	require.Error(t, k.Do(t.Context(), key, "attach", func(context.Context) error { return errBroken }))
	require.Equal(t, 500*time.Millisecond, k.RetryAfter(key, "attach"), "a success must begin the count anew")
}

func TestAnotherKindDoesNotWaitForTheFirstKindsBackoff(t *testing.T) {
	clock := testclock.NewFakeClock(time.Now())
	k := operationexecutor.NewKeyed(operationexecutor.Config{}, operationexecutor.Deps{Clock: clock})
	key := operationexecutor.Key{Object: "v"}
	for range 4 {
		_ = k.Do(t.Context(), key, "detach", func(context.Context) error { return errBroken })
	}
	require.Equal(t, 4*time.Second, k.RetryAfter(key, "detach"))
	require.Zero(t, k.RetryAfter(key, "attach"))
	require.NoError(t, k.Start(t.Context(), key, "attach", func(context.Context) error { return errBroken }, nil))
	k.Wait()
	require.Zero(t, k.RetryAfter(key, "detach"), "an attach must end the detach's pause")
	require.Equal(t, 500*time.Millisecond, k.RetryAfter(key, "attach"))
	k.ForgetFailures(key)
	require.Zero(t, k.RetryAfter(key, "attach"))
}

func TestOldFailuresAreForgotten(t *testing.T) {
	clock := testclock.NewFakeClock(time.Now())
	k := operationexecutor.NewKeyed(operationexecutor.Config{}, operationexecutor.Deps{Clock: clock})
	key := operationexecutor.Key{Object: "v"}
	for range 3 {
		_ = k.Do(t.Context(), key, "attach", func(context.Context) error { return errBroken })
	}
	clock.Step(2*operationexecutor.DefaultMaxBackoff + time.Second)
	_ = k.Do(t.Context(), key, "attach", func(context.Context) error { return errBroken })
	require.Equal(t, 500*time.Millisecond, k.RetryAfter(key, "attach"), "the fourth failure must count as a first one")
}

func TestPanicIsAFailure(t *testing.T) {
	k := operationexecutor.NewKeyed(operationexecutor.Config{}, operationexecutor.Deps{})
	var got error
	err := k.Start(t.Context(), operationexecutor.Key{Object: "v"}, "attach",
		func(context.Context) error { panic("boom") }, func(err error) { got = err })
	require.NoError(t, err)
	k.Wait()
	require.ErrorContains(t, got, "attach of v panicked: boom")
	require.NotZero(t, k.RetryAfter(operationexecutor.Key{Object: "v"}, "attach"))
}

func TestCallbackMayStartTheNextOperation(t *testing.T) {
	k := operationexecutor.NewKeyed(operationexecutor.Config{}, operationexecutor.Deps{})
	key := operationexecutor.Key{Object: "v"}
	var second error
	ran := false
	err := k.Start(t.Context(), key, "one", func(context.Context) error { return nil }, func(error) {
		second = k.Start(t.Context(), key, "two", func(context.Context) error { ran = true; return nil }, nil)
	})
	require.NoError(t, err)
	k.Wait()
	require.NoError(t, second)
	require.True(t, ran)
}

func TestDoSerialisesAndLimitBounds(t *testing.T) {
	k := operationexecutor.NewKeyed(operationexecutor.Config{Limit: 3}, operationexecutor.Deps{})
	var perVolume [5]atomic.Int32
	var all atomic.Int32
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			v := i % len(perVolume)
			err := k.Do(t.Context(), operationexecutor.Key{Object: fmt.Sprint(v)}, "mount", func(context.Context) error {
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
	k := operationexecutor.NewKeyed(operationexecutor.Config{Limit: 1}, operationexecutor.Deps{})
	release := startBlocked(t, k, operationexecutor.Key{Object: "v"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	key := operationexecutor.Key{Object: "w"}
	require.ErrorIs(t, k.Do(ctx, key, "mount", func(context.Context) error { return nil }), context.Canceled)
	require.ErrorIs(t, k.Do(ctx, operationexecutor.Key{Object: "v"}, "mount",
		func(context.Context) error { return nil }), context.Canceled)
	require.Zero(t, k.RetryAfter(key, "mount"))
	release()
}
