package gcpace

import (
	"context"
	"runtime"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

const mib = 1 << 20

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPaceFollowsWhatIsAllocated(t *testing.T) {
	at := time.Unix(0, 0)
	now := sample{at: at}
	p := &pacer{garbage: 400 * mib, collected: now}
	after := func(seconds, allocates, live uint64) sample {
		now.at = now.at.Add(time.Duration(seconds) * time.Second)
		now.allocated += allocates
		now.live = live
		return now
	}
	p.collection(after(30, 100*mib, 100*mib))
	require.Equal(t, 100, p.percent(), "at rest")
	p.collection(after(1, 100*mib, 200*mib))
	require.Equal(t, 200, p.percent(), "busy: so much that 400 MiB of garbage may lie")
	p.collection(after(4, 400*mib, 20*mib))
	require.Equal(t, 400, p.percent(), "not 20 times of what lives")
	p.collection(after(4, 40*mib, 900*mib))
	require.Equal(t, 100, p.percent(), "never more often than Go would by itself")
	require.True(t, p.busy, "one slow collection is no rest")
	p.tick(after(1, 0, 200*mib))
	require.True(t, p.busy, "much since the last tick, though not just now")
	p.tick(after(10, 10*mib, 200*mib))
	require.Equal(t, 100, p.percent(), "at rest again")
	p.collection(after(0, 300*mib, 100*mib))
	require.Equal(t, 100, p.percent(), "no time went by")
}

func TestSmallMachinesKeepLessGarbage(t *testing.T) {
	require.EqualValues(t, 512*mib, garbageFor(64<<30))
	require.EqualValues(t, 64*mib, garbageFor(2<<30))
	memory, err := available()
	require.NoError(t, err)
	require.Greater(t, memory, uint64(64*mib))
}

func TestProcessThatIsBusyAndThenRests(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(ctx, mostGarbage, 100*time.Millisecond)
	}()
	defer func() { <-ended }()
	defer cancel()
	var garbage []byte
	require.Eventually(t, func() bool {
		for range 64 {
			garbage = make([]byte, mib)
		}
		return pace() == busyPercent
	}, time.Minute, time.Nanosecond, "allocates much")
	require.Len(t, garbage, mib)
	require.Eventually(t, func() bool { return pace() == calmPercent }, time.Minute, time.Millisecond, "allocates nothing")
}

// pace is the percentage that the collector goes by.
func pace() uint64 {
	value := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(value)
	return value[0].Value.Uint64()
}

func TestEachCollectionIsTold(t *testing.T) {
	collected := make(chan struct{}, 1)
	tellCollections(t.Context(), collected)
	var before sample
	for range 3 {
		collect(collected)
		now := read()
		require.NotZero(t, now.live)
		require.Greater(t, now.allocated, before.allocated)
		before = now
	}
}

// collect has collections run until one is told of: the next one may be over before it is known that the last one was.
func collect(collected <-chan struct{}) {
	for {
		runtime.GC()
		select {
		case <-collected:
			return
		default:
			runtime.Gosched()
		}
	}
}
