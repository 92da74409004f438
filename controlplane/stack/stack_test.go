package stack_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/controlplane/notify"
	"github.com/berth-dev/berth/controlplane/stack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// diary remembers reports in order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) Report(component string, state notify.State, cause error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	line := component + " " + string(state)
	if cause != nil {
		line += ": " + cause.Error()
	}
	d.lines = append(d.lines, line)
	return errors.New("a report that fails changes nothing")
}

func (d *diary) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.lines, "\n")
}

// steady is ready at once and works until it is stopped.
func steady(ctx context.Context, ready func()) error {
	ready()
	ready() // once too often does no harm
	<-ctx.Done()
	return nil
}

func run(t *testing.T, ctx context.Context, ready func(), phases ...[]stack.Component) (string, error) {
	t.Helper()
	var d diary
	s := stack.New(stack.Deps{Reporter: &d}, stack.Config{Phases: phases, StopTimeout: time.Minute})
	err := s.Run(ctx, ready)
	return d.String(), err
}

func TestStartsInOrderAndStopsInReverse(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	once := func(context.Context, func()) error { return nil }
	got, err := run(t, ctx, cancel,
		[]stack.Component{{Name: "store", Run: steady}},
		[]stack.Component{{Name: "server", Run: steady}},
		[]stack.Component{{Name: "rights", Run: once, OneShot: true}},
		[]stack.Component{{Name: "worker", Run: steady}},
	)
	require.NoError(t, err)
	require.Equal(t, `store starting
store ready
server starting
server ready
rights starting
rights ready
worker starting
worker ready
worker stopped
server stopped
store stopped`, got)
}

func TestPhaseWaitsForTheOneBefore(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var storeReady bool
	slow := func(ctx context.Context, ready func()) error {
		storeReady = true // the ready that follows orders this before the next phase
		return steady(ctx, ready)
	}
	check := func(ctx context.Context, ready func()) error {
		if !storeReady {
			return errors.New("started too early")
		}
		return steady(ctx, ready)
	}
	_, err := run(t, ctx, cancel, []stack.Component{{Name: "a", Run: slow}}, []stack.Component{{Name: "b", Run: check}})
	require.NoError(t, err)
}

func TestFailureStopsTheRestAndIsNamed(t *testing.T) {
	never := func() { t.Error("must not become ready") }
	fails := func(context.Context, func()) error { return errors.New("no disk") }
	got, err := run(t, t.Context(), never,
		[]stack.Component{{Name: "store", Run: steady}},
		[]stack.Component{{Name: "server", Run: fails}},
		[]stack.Component{{Name: "worker", Run: steady}},
	)
	require.EqualError(t, err, "server: no disk")
	require.Contains(t, got, "server failed: server: no disk")
	require.Contains(t, got, "store stopped")
	require.NotContains(t, got, "worker")
}

func TestEndAfterReadyIsAFailure(t *testing.T) {
	isReady := make(chan struct{})
	dies := func(_ context.Context, ready func()) error {
		ready()
		<-isReady
		return nil
	}
	got, err := run(t, t.Context(), func() { close(isReady) }, []stack.Component{{Name: "server", Run: dies}})
	require.EqualError(t, err, "server: ended by itself")
	require.Contains(t, got, "server ready\nserver failed")
}

func TestFailedOneShotEndsTheStack(t *testing.T) {
	fails := func(context.Context, func()) error { return errors.New("forbidden") }
	_, err := run(t, t.Context(), func() {}, []stack.Component{{Name: "rights", Run: fails, OneShot: true}})
	require.EqualError(t, err, "rights: forbidden")
}

func TestStopDuringStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	never := func(ctx context.Context, _ func()) error {
		cancel()
		<-ctx.Done()
		return nil
	}
	got, err := run(t, ctx, func() { t.Error("must not become ready") },
		[]stack.Component{{Name: "store", Run: never}}, []stack.Component{{Name: "server", Run: steady}})
	require.NoError(t, err)
	require.Equal(t, "store starting\nstore stopped", got)
}

func TestMemberThatDoesNotStopIsAbandonedAndNamed(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Unix(0, 0))
	release := make(chan struct{})
	stuck := func(ctx context.Context, ready func()) error {
		ready()
		<-ctx.Done()
		clk.Step(10 * time.Second) // the stop's timer runs by now: it started before the cancel
		<-release
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var d diary
	s := stack.New(stack.Deps{Reporter: &d, Clock: clk}, stack.Config{
		Phases: [][]stack.Component{{{Name: "server", Run: stuck}}}, StopTimeout: 10 * time.Second,
	})
	err := s.Run(ctx, cancel)
	close(release)
	require.ErrorContains(t, err, "server did not stop within 10s")
}
