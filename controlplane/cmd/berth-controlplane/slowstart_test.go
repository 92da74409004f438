package main

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/controlplane/etcd"
)

// TestTheStoreIsCheckedIfTheStartIsSlow and only then.
func TestTheStoreIsCheckedIfTheStartIsSlow(t *testing.T) {
	damage := fmt.Errorf("%w: of a key", etcd.ErrDamagedValue)
	for name, found := range map[string]error{"damaged": damage, "whole": nil, "unknown": errors.New("no connection")} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakeClock(time.Unix(0, 0))
			checked := make(chan struct{})
			check := func(context.Context) error { close(checked); return found }
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var crashed error
			ended, ready := make(chan error, 1), make(chan struct{})
			go func() {
				damaged := func(err error) { crashed = err; cancel() }
				ended <- checkedIfSlow(clock, check, damaged, func(ctx context.Context, ready func()) error {
					<-checked
					if found != damage {
						ready()
						ready()
						cancel()
					}
					<-ctx.Done()
					return nil
				})(ctx, func() { ready <- struct{}{} })
			}()
			require.Eventually(t, clock.HasWaiters, time.Minute, time.Millisecond)
			clock.Step(slowStart)
			if found == damage {
				require.NoError(t, <-ended)
				require.Equal(t, damage, crashed)
				return
			}
			<-ready
			<-ready
			require.NoError(t, <-ended)
			require.NoError(t, crashed)
		})
	}

	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	failed := errors.New("failed")
	err := checkedIfSlow(clock, nil, nil, func(_ context.Context, ready func()) error {
		ready()
		return failed
	})(t.Context(), func() {})
	require.ErrorIs(t, err, failed)
	require.False(t, clock.HasWaiters())
}
