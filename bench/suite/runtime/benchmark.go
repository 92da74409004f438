package runtime

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-dev/berth/bench/harness"
)

const (
	ours           = "berth"
	theirs         = "controller-runtime v0.24.1"
	theirsOldQueue = "controller-runtime v0.24.1, plain queue"

	workers    = 4
	steadyKeys = 400_000
	steadyLive = 1_000
	queuedKeys = 1_000_000
	mixedKeys  = 10_000
	mixedLive  = 1_000
	flushEach  = 1_000 // so that no buffer grows to the size of the queue
)

// Benchmark measures the runtime.
func Benchmark() harness.Benchmark {
	rates := []harness.Metric{
		{Name: "reconciles", Unit: "/s", Better: harness.Higher},
		{Name: "CPU a reconcile", Unit: "us", Better: harness.Lower},
		{Name: "allocated a reconcile", Unit: "B", Better: harness.Lower},
	}
	fast := []harness.Target{{Metric: "reconciles", Against: theirs, Ratio: 2}}
	return harness.Benchmark{
		Name: "reconcile", Title: "Controller runtime", Budget: 2 * time.Minute,
		About: "A reconciler that does nothing, 4 workers, metrics on. *Steady*: 400,000 keys in all, 1,000 of them" +
			" waiting at any time. *Burst*: 1,000,000 keys come at once and are worked off. *Memory*: 1,000,000 keys" +
			" wait in the queue; the keys themselves are not counted. *Mixed load*: an initial list of 10,000 keys whose" +
			" reconciles take 1 ms each and fail once in 20 times, and a live event every 2 ms: how long it waits for" +
			" its reconcile.",
		Cases: []harness.Case{
			{Name: "steady", Metrics: rates, Targets: fast, Variants: variants(steady)},
			{Name: "burst", Metrics: rates, Targets: fast, Variants: variants(burst)},
			{
				Name: "memory",
				Metrics: []harness.Metric{
					{Name: "a queued key", Unit: "B", Better: harness.Lower},
					{Name: "CPU to queue a key", Unit: "us", Better: harness.Lower},
				},
				Targets:  []harness.Target{{Metric: "a queued key", Against: theirs, Ratio: 0.5}},
				Variants: variants(memory),
			},
			{
				Name: "mixed load",
				Metrics: []harness.Metric{
					{Name: "wait p50", Unit: "ms", Better: harness.Lower},
					{Name: "wait p99", Unit: "ms", Better: harness.Lower},
					{Name: "CPU a reconcile", Unit: "us", Better: harness.Lower},
				},
				Variants: variants(mixed),
			},
		},
	}
}

func variants(run func(context.Context, *harness.Sample, engine) error) []harness.Variant {
	variant := func(name string, e engine) harness.Variant {
		return harness.Variant{Name: name, Run: func(ctx context.Context, s *harness.Sample) error {
			return run(ctx, s, e)
		}}
	}
	return []harness.Variant{
		variant(ours, runBerth), variant(theirs, runControllerRuntime(true)), variant(theirsOldQueue, runControllerRuntime(false)),
	}
}

func keys(n int) []key {
	names := make([]key, n)
	for i := range names {
		names[i] = key{Namespace: "default", Name: fmt.Sprintf("object-%07d", i)}
	}
	return names
}

func rate(s *harness.Sample, spent harness.Spent, count int) {
	s.Set("reconciles", float64(count)/spent.Wall.Seconds())
	s.Set("CPU a reconcile", float64(spent.CPU.Nanoseconds())/1e3/float64(count))
	s.Set("allocated a reconcile", float64(spent.Allocated)/float64(count))
}

// steady keeps the queue at one length: each reconcile adds the next key.
func steady(ctx context.Context, s *harness.Sample, run engine) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	all := keys(steadyKeys)
	var (
		next, done atomic.Int64
		to         atomic.Pointer[enqueuer]
		meter      harness.Meter
		spent      harness.Spent
	)
	next.Store(steadyLive)
	err := run(ctx, work{
		workers: workers,
		started: func(_ context.Context, add enqueuer) {
			to.Store(&add)
			meter = harness.StartMeter()
			for _, k := range all[:steadyLive] {
				add.live(k)
			}
		},
		reconcile: func(context.Context, key) error {
			if i := next.Add(1) - 1; i < steadyKeys {
				(*to.Load()).live(all[i])
			}
			if done.Add(1) == steadyKeys {
				spent = meter.Stop()
				stop()
			}
			return nil
		},
	})
	if done.Load() < steadyKeys {
		return errors.Join(fmt.Errorf("only %d of %d keys were reconciled", done.Load(), steadyKeys), err)
	}
	rate(s, spent, steadyKeys)
	return err
}

// burst works a long queue off.
func burst(ctx context.Context, s *harness.Sample, run engine) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	all := keys(queuedKeys)
	var (
		done  atomic.Int64
		meter harness.Meter
		spent harness.Spent
	)
	err := run(ctx, work{
		workers: workers,
		started: func(_ context.Context, add enqueuer) {
			meter = harness.StartMeter()
			for _, k := range all {
				add.live(k)
			}
		},
		reconcile: func(context.Context, key) error {
			if done.Add(1) == queuedKeys {
				spent = meter.Stop()
				stop()
			}
			return nil
		},
	})
	if done.Load() < queuedKeys {
		return errors.Join(fmt.Errorf("only %d of %d keys were reconciled", done.Load(), queuedKeys), err)
	}
	rate(s, spent, queuedKeys)
	return err
}

// memory measures the heap when all keys wait; the workers are held by the first ones.
func memory(ctx context.Context, s *harness.Sample, run engine) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	all := keys(queuedKeys)
	var (
		held  sync.WaitGroup
		once  sync.Once
		count atomic.Int64
	)
	held.Add(workers)
	err := run(ctx, work{
		workers: workers,
		started: func(ctx context.Context, add enqueuer) {
			for _, k := range all[:workers] {
				add.live(k)
			}
			go once.Do(func() {
				defer stop()
				held.Wait()
				before := harness.HeapInUse()
				meter := harness.StartMeter()
				for i, k := range all[workers:] {
					if add.live(k); i%flushEach == 0 {
						add.flush()
					}
				}
				add.flush()
				spent := meter.Stop()
				s.Set("a queued key", float64(harness.HeapInUse()-before)/float64(len(all)-workers))
				s.Set("CPU to queue a key", float64(spent.CPU.Nanoseconds())/1e3/float64(len(all)-workers))
			})
		},
		reconcile: func(ctx context.Context, _ key) error {
			if count.Add(1) <= workers {
				held.Done()
			}
			<-ctx.Done()
			return nil
		},
	})
	heldKeys(all)
	return err
}

// heldKeys stops the compiler from letting the keys go before the heap is measured.
//
//go:noinline
func heldKeys([]key) {}

var errNow = errors.New("not this time")

// mixed measures how long live events wait while an initial list is processed.
func mixed(ctx context.Context, s *harness.Sample, run engine) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	m := &mix{began: map[key]time.Time{}, failed: map[key]bool{}}
	meter := harness.StartMeter()
	err := run(ctx, work{
		workers:   workers,
		reconcile: m.reconcile,
		started: func(ctx context.Context, add enqueuer) {
			for _, k := range keys(mixedKeys) {
				add.background(k)
			}
			go func() {
				defer stop()
				m.feed(ctx, add)
			}()
		},
	})
	spent := meter.Stop()
	if len(m.waits) < mixedLive {
		return errors.Join(fmt.Errorf("only %d of %d live events were reconciled", len(m.waits), mixedLive), err)
	}
	s.Keep("wait", m.waits)
	s.Set("wait p50", harness.Quantile(m.waits, 0.5))
	s.Set("wait p99", harness.Quantile(m.waits, 0.99))
	s.Set("CPU a reconcile", float64(spent.CPU.Nanoseconds())/1e3/float64(m.runs))
	return err
}

// mix is the state of the mixed load.
type mix struct {
	mu     sync.Mutex // guards all below
	began  map[key]time.Time
	failed map[key]bool
	waits  []float64 // ms
	runs   int
}

// feed adds a live event every 2 ms.
func (m *mix) feed(ctx context.Context, add enqueuer) {
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for i := range mixedLive {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		k := key{Namespace: "live", Name: fmt.Sprint("object-", i)}
		m.mu.Lock()
		m.began[k] = time.Now()
		m.mu.Unlock()
		add.live(k)
	}
	// The last events are under way for as long as a queue that lets them pass needs, and for longer in one that does not.
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		m.mu.Lock()
		all := len(m.waits) == mixedLive
		m.mu.Unlock()
		if all {
			return
		}
	}
}

func (m *mix) reconcile(ctx context.Context, k key) error {
	now := time.Now()
	m.mu.Lock()
	m.runs++
	number := m.runs
	began, live := m.began[k]
	if live {
		delete(m.began, k)
		m.waits = append(m.waits, harness.Milliseconds(now.Sub(began)))
	}
	fail := !live && number%20 == 0 && !m.failed[k]
	if fail {
		m.failed[k] = true
	}
	m.mu.Unlock()
	timer := time.NewTimer(time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	if fail {
		return errNow
	}
	return nil
}
