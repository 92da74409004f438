package supervisor_test

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

	"github.com/berth-dev/berth/controlplane/statuspipe"
	"github.com/berth-dev/berth/controlplane/supervisor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recordingReporter remembers reports in order.
type recordingReporter struct {
	mu    sync.Mutex
	lines []string
}

func (d *recordingReporter) Report(component string, state statuspipe.State, cause error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	line := component + " " + string(state)
	if cause != nil {
		line += ": " + cause.Error()
	}
	d.lines = append(d.lines, line)
	return errors.New("a report that fails changes nothing")
}

func (d *recordingReporter) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.lines, "\n")
}

// runUntilStopped is ready at once and works until it is stopped.
func runUntilStopped(ctx context.Context, ready func()) error {
	ready()
	ready() // once too often does no harm
	<-ctx.Done()
	return nil
}

func run(t *testing.T, ctx context.Context, ready func(), phases ...[]supervisor.Component) (string, error) {
	t.Helper()
	var d recordingReporter
	s, err := supervisor.New(supervisor.Deps{Reporter: &d}, supervisor.Config{Phases: phases, StopTimeout: time.Minute})
	require.NoError(t, err)
	err = s.Run(ctx, ready)
	return d.String(), err
}

func TestStartsInOrderAndStopsInReverse(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	once := func(context.Context, func()) error { return nil }
	got, err := run(t, ctx, cancel,
		[]supervisor.Component{{Name: "store", Run: runUntilStopped}},
		[]supervisor.Component{{Name: "server", Run: runUntilStopped}},
		[]supervisor.Component{{Name: "rights", Run: once, OneShot: true}},
		[]supervisor.Component{{Name: "worker", Run: runUntilStopped}},
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
		return runUntilStopped(ctx, ready)
	}
	check := func(ctx context.Context, ready func()) error {
		if !storeReady {
			return errors.New("started too early")
		}
		return runUntilStopped(ctx, ready)
	}
	_, err := run(t, ctx, cancel, []supervisor.Component{{Name: "a", Run: slow}}, []supervisor.Component{{Name: "b", Run: check}})
	require.NoError(t, err)
}

func TestFailureStopsTheRestAndIsNamed(t *testing.T) {
	never := func() { t.Error("must not become ready") }
	fails := func(context.Context, func()) error { return errors.New("no disk") }
	got, err := run(t, t.Context(), never,
		[]supervisor.Component{{Name: "store", Run: runUntilStopped}},
		[]supervisor.Component{{Name: "server", Run: fails}},
		[]supervisor.Component{{Name: "worker", Run: runUntilStopped}},
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
	got, err := run(t, t.Context(), func() { close(isReady) }, []supervisor.Component{{Name: "server", Run: dies}})
	require.EqualError(t, err, "server: ended by itself")
	require.Contains(t, got, "server ready\nserver failed")
}

func TestFailedOneShotStopsAll(t *testing.T) {
	fails := func(context.Context, func()) error { return errors.New("forbidden") }
	_, err := run(t, t.Context(), func() {}, []supervisor.Component{{Name: "rights", Run: fails, OneShot: true}})
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
		[]supervisor.Component{{Name: "store", Run: never}}, []supervisor.Component{{Name: "server", Run: runUntilStopped}})
	require.NoError(t, err)
	require.Equal(t, "store starting\nstore stopped", got)
}

func TestMemberThatDoesNotStopIsAbandonedAndNamed(t *testing.T) {
	fakeClock := clocktesting.NewFakeClock(time.Unix(0, 0))
	release := make(chan struct{})
	stuck := func(ctx context.Context, ready func()) error {
		ready()
		<-ctx.Done()
		fakeClock.Step(10 * time.Second) // the stop's timer runs by now: it started before the cancel
		<-release
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var d recordingReporter
	s, err := supervisor.New(supervisor.Deps{Reporter: &d, Clock: fakeClock}, supervisor.Config{
		Phases: [][]supervisor.Component{{{Name: "server", Run: stuck}}}, StopTimeout: 10 * time.Second,
	})
	require.NoError(t, err)
	err = s.Run(ctx, cancel)
	close(release)
	require.ErrorContains(t, err, "server did not stop within 10s")
}
