package gctuner

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/berth-dev/berth/codepages"
)

const mib = 1 << 20

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPercentFollowsAllocationRate(t *testing.T) {
	at := time.Unix(0, 0)
	now := sample{at: at}
	p := &tuner{garbage: 400 * mib, load: normal, collected: now}
	after := func(seconds, allocates, live uint64) sample {
		now.at = now.at.Add(time.Duration(seconds) * time.Second)
		now.allocated += allocates
		now.live = live
		return now
	}
	p.onCollection(after(10, 100*mib, 100*mib))
	require.Equal(t, 100, p.percent(), "neither busy nor quiet")
	p.onCollection(after(120, 30*mib, 100*mib))
	require.Equal(t, 25, p.percent(), "quiet")
	p.onCollection(after(10, 30*mib, 100*mib))
	require.Equal(t, 25, p.percent(), "as good as quiet")
	p.onCollection(after(10, 100*mib, 100*mib))
	require.Equal(t, 100, p.percent(), "no longer quiet")
	p.onCollection(after(1, 100*mib, 200*mib))
	require.Equal(t, 200, p.percent(), "busy: 400 MiB of garbage are allowed")
	p.onCollection(after(4, 400*mib, 20*mib))
	require.Equal(t, 400, p.percent(), "not 20 times the live heap")
	p.onCollection(after(4, 40*mib, 900*mib))
	require.Equal(t, 100, p.percent(), "never more often than by default")
	require.Equal(t, busy, p.load, "one slow collection does not end it")
	p.onTick(after(1, 0, 200*mib))
	require.Equal(t, busy, p.load, "busy since the last tick, though not just now")
	p.onTick(after(10, 20*mib, 200*mib))
	require.Equal(t, 100, p.percent(), "no longer busy")
	p.onCollection(after(0, 300*mib, 100*mib))
	require.Equal(t, 100, p.percent(), "no time has passed")
	p.onCollection(after(10, 2000*mib, 100*mib))
	p.onTick(after(5, mib, 100*mib))
	require.Equal(t, 25, p.percent(), "quiet at once")
	p.onCollection(after(10, 100*mib, 100*mib))
	require.Equal(t, normal, p.load)
	p.onTick(after(5, mib, 100*mib))
	require.Equal(t, quiet, p.load, "without another collection")
}

func TestSmallMachinesKeepLessGarbage(t *testing.T) {
	require.EqualValues(t, 512*mib, maxGarbageFor(64<<30))
	require.EqualValues(t, 64*mib, maxGarbageFor(2<<30))
	memory, err := availableMemory()
	require.NoError(t, err)
	require.Greater(t, memory, uint64(64*mib))
}

// TestProcessThatIsBusyAndThenRests begins after a collection, as a process that has started does.
func TestProcessThatIsBusyAndThenRests(t *testing.T) {
	runtime.GC()
	ctx, cancel := context.WithCancel(t.Context())
	ended, released := make(chan struct{}), make(chan struct{}, 1)
	go func() {
		defer close(ended)
		run(ctx, maxGarbage, 100*time.Millisecond, func() {
			select {
			case released <- struct{}{}:
			default:
			}
		})
	}()
	defer func() { <-ended }()
	defer cancel()
	var garbage []byte
	require.Eventually(t, func() bool {
		for range 64 {
			garbage = make([]byte, mib)
		}
		return currentGCPercent() == busyPercent
	}, time.Minute, time.Nanosecond, "allocates much")
	require.Len(t, garbage, mib)
	require.Eventually(t, func() bool { return currentGCPercent() == quietPercent }, time.Minute, time.Millisecond, "allocates nothing")
	<-released
}

func TestFirstCollectionIsDeferred(t *testing.T) {
	t.Setenv("GOGC", "")
	defer debug.SetGCPercent(debug.SetGCPercent(normalPercent))
	DeferFirst(ProxyGarbage)
	require.EqualValues(t, 800, currentGCPercent(), "the first collection is due at 32 MiB, not at 4 MiB")
	require.Eventually(t, func() bool {
		runtime.GC()
		return currentGCPercent() == normalPercent
	}, time.Minute, time.Millisecond, "after the first collection")
	deferFirst(heapMinimum / 2)
	require.EqualValues(t, normalPercent, currentGCPercent(), "a machine with next to no memory")
	t.Setenv("GOGC", "50")
	DeferFirst(StartGarbage)
	require.EqualValues(t, normalPercent, currentGCPercent(), "the user has set it")
}

// TestLaterSettingsSurviveTheFirstCollection sets another value before the first collection, as Run does.
func TestLaterSettingsSurviveTheFirstCollection(t *testing.T) {
	t.Setenv("GOGC", "")
	defer debug.SetGCPercent(debug.SetGCPercent(normalPercent))
	DeferFirst(ProxyGarbage)
	debug.SetGCPercent(busyPercent)
	collected := make(chan struct{}, 1)
	codepages.NotifyCollections(t.Context(), collected) // its finalizer runs after the other one's, or in the next collection
	for range 3 {
		collectUntilNotified(collected)
	}
	require.EqualValues(t, busyPercent, currentGCPercent())
}

// currentGCPercent returns the collector's current GOGC.
func currentGCPercent() uint64 {
	value := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(value)
	return value[0].Value.Uint64()
}

func TestSamplesOfCollections(t *testing.T) {
	collected := make(chan struct{}, 1)
	codepages.NotifyCollections(t.Context(), collected)
	var before sample
	for range 3 {
		collectUntilNotified(collected)
		now := readSample()
		require.NotZero(t, now.live)
		require.Greater(t, now.allocated, before.allocated)
		before = now
	}
}

// collectUntilNotified runs collections until one is notified: the next one may end before the last one is known to have ended.
func collectUntilNotified(collected <-chan struct{}) {
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
