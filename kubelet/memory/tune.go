package memory

import (
	"os"
	"runtime"
	"runtime/debug"
	"time"
)

// garbagePercent is the GOGC value: how much garbage may exist beside the live heap, in percent of it, before a
// collection. A Pod's objects are small, long-lived and scattered among the garbage of the Pod's start, so nearly every
// page of the heap at its peak contains a live object and stays. The peak must therefore be low: with Go's default of
// 100 a node with 100 Pods keeps 2.3 MiB more for good.
const garbagePercent = 50

// rareCollections is the time between two collections from which a process counts as idle: Go collects every two minutes in a process
// that allocates next to nothing, and more often in any other.
const rareCollections = time.Minute

// TuneGC tunes the garbage collector of this process for a small heap, and lets collections of an idle process release the pages of
// the program, too: what an idle process does from time to time makes the kernel map code again. It must be called at start. The environment
// variable GOGC overrides it. If profiles is false, allocations are not sampled either: sampling touches a page for
// each place in the program that allocates.
func TuneGC(profiles bool) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
	if !profiles {
		runtime.MemProfileRate = 0
	}
	afterCollection(time.Now())
}

// collectionMarker is an object without references, so that each collection finalizes it.
type collectionMarker struct{ _ [16]byte }

// afterCollection waits for a collection without a goroutine. It is module codepages' ReleaseWhileIdle, which this module cannot
// require: users of this module as a library could not download it.
func afterCollection(last time.Time) {
	runtime.SetFinalizer(&collectionMarker{}, func(*collectionMarker) {
		now := time.Now()
		if now.Sub(last) >= rareCollections {
			_ = releaseProgram() // the process is larger than necessary, which Release reports
		}
		afterCollection(now)
	})
}
