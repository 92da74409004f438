package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/controlplane/etcd"
)

// runChecked runs what is ready when the returned function is called, until the test ends or the store is damaged, with a check that has the
// results, and then none. It counts the checks.
func runChecked(t *testing.T, results ...error) (s *storeCheck, isReady func(), checks *atomic.Int32, damage *atomic.Value) {
	ctx, cancel := context.WithCancel(t.Context())
	checks, damage = new(atomic.Int32), new(atomic.Value)
	s = newStoreCheck(clock.RealClock{}, func(context.Context) error { // of the bubble
		number := int(checks.Add(1))
		if number > len(results) {
			return nil
		}
		return results[number-1]
	}, func(err error) {
		damage.Store(err)
		cancel()
	})
	start, ready, ended := make(chan struct{}), make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- s.beside(func(ctx context.Context, ready func()) error {
			select {
			case <-start:
				ready()
			case <-ctx.Done():
			}
			<-ctx.Done()
			return nil
		})(ctx, func() { ready <- struct{}{} })
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return s, func() {
		close(start)
		<-ready
		synctest.Wait()
	}, checks, damage
}

func TestTheStoreIsCheckedIfTheStartIsSlow(t *testing.T) {
	damaged := fmt.Errorf("%w: of a key", etcd.ErrDamagedValue)
	for name, found := range map[string]error{"damaged": damaged, "whole": nil, "unknown": errors.New("no connection")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, isReady, checks, damage := runChecked(t, found)
				time.Sleep(slowStart - 1)
				synctest.Wait()
				require.Zero(t, checks.Load())
				time.Sleep(time.Hour)
				synctest.Wait()
				require.EqualValues(t, 1, checks.Load())
				if found == damaged {
					require.Equal(t, damaged, damage.Load())
					return
				}
				require.Nil(t, damage.Load())
				isReady()
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		_, isReady, checks, _ := runChecked(t)
		isReady()
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Zero(t, checks.Load(), "it was in time")
	})
}

// TestTheStoreIsCheckedIfAnObjectCannotBeRead while the API server starts, and later, not more often than each checkInterval.
func TestTheStoreIsCheckedIfAnObjectCannotBeRead(t *testing.T) {
	damaged := fmt.Errorf("%w: of a key", etcd.ErrDamagedValue)
	synctest.Test(t, func(t *testing.T) {
		s, isReady, checks, damage := runChecked(t, nil, errors.New("no connection"), damaged)
		for range 3 {
			s.suspect()
		}
		synctest.Wait()
		require.EqualValues(t, 1, checks.Load())
		isReady()
		for _, want := range []int{2, 3} {
			s.suspect()
			synctest.Wait()
			require.EqualValues(t, want-1, checks.Load())
			time.Sleep(checkInterval)
			synctest.Wait()
			require.EqualValues(t, want-1, checks.Load())
			s.suspect()
			synctest.Wait()
			require.EqualValues(t, want, checks.Load())
		}
		require.Equal(t, damaged, damage.Load())
	})
}

func TestTheEndOfTheAPIServerEndsItsChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("failed")
		s := newStoreCheck(clock.RealClock{}, nil, nil)
		err := s.beside(func(_ context.Context, ready func()) error {
			ready()
			return failed
		})(t.Context(), func() {})
		require.ErrorIs(t, err, failed)
	})
}
