package supervisor

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"
)

// TestServiceManagerIsNotified covers the states of a run, and the watchdog while it lasts.
func TestServiceManagerIsNotified(t *testing.T) {
	states := make(chan string, 100)
	s, _ := newTestSupervisor(t, "run", shell(t, "exec sleep 1000"))
	s.deps.Notify = func(state string) error { states <- state; return nil }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	require.Equal(t, "READY=1\nSTATUS=all of it", <-states)
	cancel()
	require.Equal(t, "STOPPING=1", <-states)
	require.NoError(t, <-ended)
	require.Empty(t, states)
}

func TestWatchdogIsFedWhileTheSupervisorWorks(t *testing.T) {
	states := make(chan string, 100)
	fake := clocktesting.NewFakeClock(time.Unix(0, 0))
	s, _ := newTestSupervisor(t, "run", Program{})
	s.deps.Clock, s.deps.Watchdog = fake, time.Minute
	s.deps.Notify = func(state string) error { states <- state; return nil }
	stop := s.feedWatchdog()
	require.Equal(t, "WATCHDOG=1", <-states)
	s.mu.Lock() // it is stuck
	fake.Step(time.Hour)
	require.Empty(t, states)
	s.mu.Unlock()
	require.Equal(t, "WATCHDOG=1", <-states)
	stop()
	s.deps.Watchdog = 0
	s.feedWatchdog()()
}
