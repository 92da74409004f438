package expect

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	upstream "k8s.io/kubernetes/pkg/controller"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/expect"
)

const (
	ours       = "berth"
	theirs     = "kubernetes v1.36.3"
	goroutines = 8
	keys       = 10_000
	perWorker  = 1_000_000
	children   = 8       // UIDs that each goroutine uses with each key
	planned    = 1 << 16 // steps that each goroutine draws beforehand, and repeats
)

// store is what a controller does with expectations, in the terms of either store.
type store interface {
	// decide reads what a controller needs to know before it creates or deletes, as one look.
	decide(key string)
	// create records one creation, then that it was seen.
	create(key string, uid types.UID) error
	// remove records one deletion, then that it was seen.
	remove(key string, uid types.UID) error
}

// Benchmark measures the stores.
func Benchmark() harness.Benchmark {
	metrics := []harness.Metric{
		{Name: "steps", Unit: "/s", Better: harness.Higher},
		{Name: "CPU a step", Unit: "ns", Better: harness.Lower},
		{Name: "allocated a step", Unit: "B", Better: harness.Lower},
	}
	mix := func(name string, writes int, targets ...harness.Target) harness.Case {
		return harness.Case{Name: name, Metrics: metrics, Targets: targets, Variants: []harness.Variant{
			variant(ours, writes, func() store { return berth{expect.NewExpectationsStore()} }),
			variant(theirs, writes, func() store {
				return kubernetes{upstream.NewUIDTrackingControllerExpectations(upstream.NewControllerExpectations())}
			}),
		}}
	}
	return harness.Benchmark{
		Name: "expect", Title: "Expectations", Budget: time.Minute,
		About: "8 goroutines, 10,000 keys, 8,000,000 steps at random keys, drawn beforehand. A step either reads what a controller needs" +
			" before it decides (creations and deletions expected, or SatisfiedExpectations), or records a creation and" +
			" that it was seen, or records a deletion and that it was seen. Ours remembers the UIDs of creations, the" +
			" other only counts them.",
		Cases: []harness.Case{
			mix("4 reads to 1 write", 20, harness.Target{Metric: "steps", Against: theirs, Ratio: 5}),
			mix("reads only", 0),
			mix("writes only", 100),
		},
	}
}

func variant(name string, writes int, open func() store) harness.Variant {
	return harness.Variant{Name: name, Run: func(_ context.Context, s *harness.Sample) error {
		return run(s, open(), writes)
	}}
}

// run takes the steps; writes is how many of 100 write.
func run(s *harness.Sample, to store, writes int) error {
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprint("default/owner-", i)
		if err := to.create(names[i], "first"); err != nil { // so that every key is known
			return err
		}
	}
	uids := make([][]types.UID, goroutines)
	for worker := range uids {
		for child := range children {
			uids[worker] = append(uids[worker], types.UID(fmt.Sprintf("0f0e%04d-%04d-4000-8000-000000000000", worker, child)))
		}
	}
	plans := make([][]step, goroutines)
	for worker := range plans {
		plans[worker] = plan(rand.New(rand.NewPCG(1, uint64(worker))), writes)
	}
	meter := harness.StartMeter()
	var all sync.WaitGroup
	errs := make([]error, goroutines)
	for worker := range goroutines {
		all.Go(func() {
			errs[worker] = claimSteps(to, names, uids[worker], plans[worker])
		})
	}
	all.Wait()
	spent := meter.Stop()
	const count = goroutines * perWorker
	s.Set("steps", count/spent.Wall.Seconds())
	s.Set("CPU a step", float64(spent.CPU.Nanoseconds())/count)
	s.Set("allocated a step", float64(spent.Allocated)/count)
	return errors.Join(errs...)
}

// step is one step: which key, and what to do with it. It is small, and drawn beforehand, so that what is measured is
// the store.
type step struct {
	key  uint16
	what action
}

type action uint8

const (
	decide action = iota
	create
	remove
)

// plan draws one goroutine's steps; writes is how many of 100 write.
func plan(random *rand.Rand, writes int) []step {
	steps := make([]step, planned)
	for i := range steps {
		steps[i].key = uint16(random.IntN(keys))
		if dice := random.IntN(100); dice < writes {
			steps[i].what = create + action(dice%2)
		}
	}
	return steps
}

// claimSteps takes one goroutine's steps.
func claimSteps(to store, names []string, uids []types.UID, steps []step) error {
	for i := range perWorker {
		next := steps[i%planned]
		key := names[next.key]
		var err error
		switch next.what {
		case decide:
			to.decide(key)
		case create:
			err = to.create(key, uids[i%children])
		case remove:
			err = to.remove(key, uids[i%children])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

type berth struct{ store *expect.ExpectationsStore }

func (b berth) decide(key string) {
	if expected, known, _ := b.store.GetExpectations(key); known {
		_, _ = expected.Creations(), expected.Deletions()
	}
}

func (b berth) create(key string, uid types.UID) error {
	if err := b.store.ExpectCreations(logr.Discard(), key, uid); err != nil {
		return err
	}
	b.store.SyncExpectations(key, []types.UID{uid}, nil)
	return nil
}

func (b berth) remove(key string, uid types.UID) error {
	if err := b.store.ExpectDeletions(logr.Discard(), key, uid); err != nil {
		return err
	}
	b.store.ObserveDeletions(logr.Discard(), key, uid)
	return nil
}

type kubernetes struct {
	store *upstream.UIDTrackingControllerExpectations
}

func (k kubernetes) decide(key string) {
	_ = k.store.SatisfiedExpectations(logr.Discard(), key)
}

func (k kubernetes) create(key string, _ types.UID) error {
	if err := k.store.ExpectCreations(logr.Discard(), key, 1); err != nil {
		return err
	}
	k.store.CreationObserved(logr.Discard(), key)
	return nil
}

func (k kubernetes) remove(key string, uid types.UID) error {
	if err := k.store.ExpectDeletions(logr.Discard(), key, []string{string(uid)}); err != nil {
		return err
	}
	k.store.DeletionObserved(logr.Discard(), key, string(uid))
	return nil
}
