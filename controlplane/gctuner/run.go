package gctuner

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// quietPeriod is how long little must have been allocated before what the garbage took is given back.
const quietPeriod = 5 * time.Second

// Run has the collector's pace follow what the process does, until ctx ends. It changes the whole process: run it once.
// The environment variable GOGC overrules it: then it does nothing. GOMEMLIMIT holds as ever.
func Run(ctx context.Context) error {
	if os.Getenv("GOGC") != "" {
		return nil
	}
	memory, err := availableMemory()
	if err != nil {
		return fmt.Errorf("pace the garbage collector: %w", err)
	}
	run(ctx, maxGarbageFor(memory), quietPeriod)
	return nil
}

// availableMemory is the machine's memory, in bytes, or what of it the process's control groups allow.
func availableMemory() (uint64, error) {
	machine, err := memlimit.FromSystem()
	if err != nil {
		return 0, fmt.Errorf("read the machine's memory: %w", err)
	}
	if limit, err := memlimit.FromCgroup(); err == nil {
		return min(machine, limit), nil
	}
	return machine, nil // no limit, or no control groups
}

func run(ctx context.Context, garbage uint64, rest time.Duration) {
	p := &tuner{garbage: garbage, collected: readSample()}
	collected := make(chan struct{}, 1)
	notifyCollections(ctx, collected)
	ticks := time.NewTicker(rest)
	ticks.Stop() // there is nothing to look at before it is busy
	defer ticks.Stop()
	for {
		busy, percent := p.busy, p.percent()
		select {
		case <-ctx.Done():
			return
		case <-collected:
			p.onCollection(readSample())
		case <-ticks.C:
			p.onTick(readSample())
		}
		if p.percent() != percent {
			debug.SetGCPercent(p.percent())
		}
		switch {
		case p.busy && !busy:
			ticks.Reset(rest)
		case busy && !p.busy:
			ticks.Stop()
			debug.FreeOSMemory()
		}
	}
}

func readSample() sample {
	values := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(values)
	return sample{at: time.Now(), allocated: values[0].Value.Uint64(), live: values[1].Value.Uint64()}
}

// collectionMarker is an object that nothing holds, so that each collection finds it.
type collectionMarker struct{ _ [16]byte }

// notifyCollections tells of each collection, some time after it, until ctx ends. One that was not heard of yet stands for
// those after it.
func notifyCollections(ctx context.Context, collected chan<- struct{}) {
	runtime.SetFinalizer(&collectionMarker{}, func(*collectionMarker) {
		if ctx.Err() != nil {
			return
		}
		select {
		case collected <- struct{}{}:
		default:
		}
		notifyCollections(ctx, collected)
	})
}
