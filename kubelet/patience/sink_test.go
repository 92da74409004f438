package patience

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// kept is a sink that keeps what it gets.
type kept struct{ names chan string }

func (k kept) Create(e *corev1.Event) (*corev1.Event, error) { k.names <- e.Name; return e, nil }
func (k kept) Update(e *corev1.Event) (*corev1.Event, error) { k.names <- e.Name; return e, nil }
func (k kept) Patch(e *corev1.Event, _ []byte) (*corev1.Event, error) {
	k.names <- e.Name
	return e, nil
}

func event(name string) *corev1.Event {
	e := &corev1.Event{}
	e.Name = name
	return e
}

// waiting blocks until the sink waits for its timer.
func waiting(t *testing.T, clk *clocktesting.FakeClock) {
	t.Helper()
	require.Eventually(t, clk.HasWaiters, time.Minute, time.Millisecond)
}

func TestOnlyTheFirstEventAfterASilenceWaits(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	to := kept{make(chan string, 10)}
	sink := NewSink(t.Context(), to, clk)
	var queue sync.WaitGroup
	queue.Go(func() { // as a broadcaster hands events over: one after the other
		_, _ = sink.Create(event("a"))
		_, _ = sink.Patch(event("b"), nil)
		_, _ = sink.Update(event("c"))
	})
	waiting(t, clk)
	clk.Step(hold - 1)
	require.Empty(t, to.names, "held back")
	clk.Step(1)
	queue.Wait()
	require.Equal(t, []string{"a", "b", "c"}, []string{<-to.names, <-to.names, <-to.names})

	clk.Step(silence - 1)
	_, err := sink.Create(event("d"))
	require.NoError(t, err)
	require.Equal(t, "d", <-to.names, "the queue was not empty for long")

	clk.Step(silence)
	queue.Go(func() { _, _ = sink.Create(event("e")) })
	waiting(t, clk)
	require.Empty(t, to.names, "held back again")
	clk.Step(hold)
	queue.Wait()
}

func TestNothingWaitsAtTheEnd(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	to := kept{make(chan string, 10)}
	ctx, cancel := context.WithCancel(t.Context())
	sink := NewSink(ctx, to, clk)
	var queue sync.WaitGroup
	queue.Go(func() { _, _ = sink.Create(event("last")) })
	waiting(t, clk)
	cancel()
	queue.Wait()
	require.Equal(t, "last", <-to.names)
}
