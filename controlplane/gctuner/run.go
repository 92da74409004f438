package gctuner

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/berth-dev/berth/codepages"
)

// restPeriod is how long a process must have allocated less before memory is returned to the system.
const restPeriod = 5 * time.Second

// Run adjusts the garbage collector to the allocation rate until ctx ends. It is to be called when the process has started: what a
// start allocates for good would otherwise lie scattered among much garbage, and memory could not be returned. It changes the whole process: run it once. If the
// environment variable GOGC is set, it does nothing. GOMEMLIMIT applies as usual. It calls release each time when the process has
// come to allocate less and memory that it used until then has been returned to the system, and after each collection of a quiet
// process.
func Run(ctx context.Context, release func()) error {
	if os.Getenv("GOGC") != "" {
		return nil
	}
	memory, err := availableMemory()
	if err != nil {
		return fmt.Errorf("tune the garbage collector: %w", err)
	}
	run(ctx, maxGarbageFor(memory), restPeriod, release)
	return nil
}

// availableMemory returns the machine's memory, or the limit of the process's cgroup if that is lower, in bytes.
func availableMemory() (uint64, error) {
	machine, err := memlimit.FromSystem()
	if err != nil {
		return 0, fmt.Errorf("read the machine's memory: %w", err)
	}
	if limit, err := memlimit.FromCgroup(); err == nil {
		return min(machine, limit), nil
	}
	return machine, nil // no limit, or no cgroups
}

func run(ctx context.Context, garbage uint64, rest time.Duration, release func()) {
	now := readSample()
	p := &tuner{garbage: garbage, load: busy, collected: now, ticked: now} // it was busy with its start
	percent := normalPercent                                               // what the collector uses
	collected := make(chan struct{}, 1)
	codepages.NotifyCollections(ctx, collected)
	// It runs until the process is quiet: the next collection of one that allocates a little is up to two minutes away, and
	// keeps as much garbage as there is live memory.
	ticks := time.NewTicker(rest)
	defer ticks.Stop()
	for {
		before := p.load
		select {
		case <-ctx.Done():
			return
		case <-collected:
			p.onCollection(readSample())
			if p.load == quiet && before == quiet {
				release() // the collection itself needed code, and what was used since the last one
			}
		case <-ticks.C:
			p.onTick(readSample())
		}
		if p.percent() != percent {
			percent = p.percent()
			debug.SetGCPercent(percent)
		}
		if p.load > before {
			ticks.Reset(rest)
		}
		if p.load == quiet {
			ticks.Stop()
		}
		if p.load < before {
			debug.FreeOSMemory()
			release()
		}
	}
}

func readSample() sample {
	values := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(values)
	return sample{at: time.Now(), allocated: values[0].Value.Uint64(), live: values[1].Value.Uint64()}
}
