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
	perWorker  = 500_000
	children   = 8 // UIDs that each goroutine uses with each key
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
		About: "8 goroutines, 10,000 keys, 4,000,000 steps at random keys. A step either reads what a controller needs" +
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
	meter := harness.StartMeter()
	var all sync.WaitGroup
	errs := make([]error, goroutines)
	for worker := range goroutines {
		all.Go(func() {
			errs[worker] = steps(to, names, uids[worker], rand.New(rand.NewPCG(1, uint64(worker))), writes)
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

// steps takes one goroutine's steps.
func steps(to store, names []string, uids []types.UID, random *rand.Rand, writes int) error {
	for i := range perWorker {
		key := names[random.IntN(keys)]
		dice := random.IntN(100)
		var err error
		switch uid := uids[i%children]; {
		case dice >= writes:
			to.decide(key)
		case dice%2 == 0:
			err = to.create(key, uid)
		default:
			err = to.remove(key, uid)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

type berth struct{ store *expect.ExpectationsStore }

func (b berth) decide(key string) {
	_ = b.store.GetCreateExpectations(key)
	_ = b.store.GetDeleteExpectations(key)
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
