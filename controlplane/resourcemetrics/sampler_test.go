package resourcemetrics

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestUsageSince(t *testing.T) {
	second := func(n int) time.Time { return epoch.Add(time.Duration(n) * time.Second) }
	before := &counters{at: second(10), started: second(0), cpu: 4 * time.Second, memory: 1}
	for name, c := range map[string]struct {
		before *counters
		now    counters
		want   usage
		ok     bool
	}{
		"half a core":              {before, counters{at: second(12), cpu: 5 * time.Second, memory: 7}, usage{second(12), 2 * time.Second, 5e8, 7}, true},
		"idle":                     {before, counters{at: second(12), cpu: 4 * time.Second}, usage{at: second(12), window: 2 * time.Second}, true},
		"restarted":                {before, counters{at: second(14), started: second(12), cpu: time.Second}, usage{second(14), 2 * time.Second, 5e8, 0}, true},
		"started since":            {nil, counters{at: second(14), started: second(13), cpu: time.Second}, usage{second(14), time.Second, 1e9, 0}, true},
		"start unknown":            {nil, counters{at: second(14), cpu: time.Second}, usage{}, false},
		"start in the future":      {nil, counters{at: second(14), started: second(15)}, usage{}, false},
		"not read again":           {before, *before, usage{}, false},
		"not read again, a rate":   {before, counters{at: second(10), cpu: 4 * time.Second, cores: ptr.To(uint64(3e8)), memory: 2}, usage{second(10), cachedWindow, 3e8, 2}, true},
		"the clock was set back":   {before, counters{at: second(9), cpu: 5 * time.Second}, usage{}, false},
		"restarted, start unknown": {before, counters{at: second(14), cpu: time.Second}, usage{}, false},
	} {
		got, ok := usageSince(c.before, c.now)
		require.Equal(t, c.ok, ok, name)
		require.Equal(t, c.want, got, name)
	}
}

// node is a kubelet whose one container uses half a core.
type node struct {
	clock *clocktesting.FakeClock
	reads int
}

func (n *node) read(context.Context) (*reading, error) {
	n.reads++
	now := n.clock.Now()
	c := counters{at: now, started: epoch, cpu: now.Sub(epoch) / 2, memory: 1 << 20}
	return &reading{taken: now, node: &c, pods: map[podKey]podCounters{
		{"ns", "p"}: {uid: "u", containers: map[string]counters{"main": c}},
	}}, nil
}

// sampleWithWait samples, and steps the clock while it waits between two readings.
func sampleWithWait(t *testing.T, s *sampler, clock *clocktesting.FakeClock) *nodeUsage {
	t.Helper()
	type sampled struct {
		usage *nodeUsage
		err   error
	}
	done := make(chan sampled, 1)
	go func() {
		usage, err := s.sample(t.Context())
		done <- sampled{usage, err}
	}()
	for {
		select {
		case got := <-done:
			require.NoError(t, got.err)
			return got.usage
		default:
			if clock.HasWaiters() {
				clock.Step(minWindow)
			}
			time.Sleep(time.Millisecond) // the goroutine above runs; nothing depends on how far
		}
	}
}

func TestFirstRequestTakesTwoReadings(t *testing.T) {
	clock := clocktesting.NewFakeClock(epoch.Add(time.Hour))
	n := &node{clock: clock}
	s := newSampler(n.read, clock)
	first := sampleWithWait(t, s, clock)
	require.Equal(t, 2, n.reads)
	require.Equal(t, usage{clock.Now(), minWindow, 5e8, 1 << 20}, *first.node)
	require.Equal(t, *first.node, first.pods[podKey{"ns", "p"}].containers["main"])

	again, err := s.sample(t.Context())
	require.NoError(t, err)
	require.Same(t, first, again, "a reading of less than a second ago serves")
	require.Equal(t, 2, n.reads)

	clock.Step(2 * time.Second)
	next, err := s.sample(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, n.reads, "an earlier reading is there")
	require.Equal(t, 3*time.Second, next.node.window)
}

func TestWindowIsThatOfMetricsServer(t *testing.T) {
	clock := clocktesting.NewFakeClock(epoch.Add(time.Hour))
	n := &node{clock: clock}
	s := newSampler(n.read, clock)
	sampleWithWait(t, s, clock)
	for range 100 {
		clock.Step(4 * time.Second)
		u, err := s.sample(t.Context())
		require.NoError(t, err)
		require.LessOrEqual(t, len(s.readings), 7, "readings are not kept for ever")
		require.LessOrEqual(t, u.node.window, 20*time.Second)
		require.EqualValues(t, 5e8, u.node.nanoCores)
	}
	require.GreaterOrEqual(t, s.usage.node.window, preferredWindow)
	clock.Step(2 * maxWindow)
	n.reads = 0
	require.Equal(t, minWindow, sampleWithWait(t, s, clock).node.window, "old readings say nothing about now")
	require.Equal(t, 2, n.reads)
}

func TestWaitEndsWithItsRequest(t *testing.T) {
	clock := clocktesting.NewFakeClock(epoch)
	n := &node{clock: clock}
	s := newSampler(n.read, clock)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.sample(ctx)
	require.ErrorIs(t, err, context.Canceled)
}
