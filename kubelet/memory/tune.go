package memory

import (
	"os"
	"runtime"
	"runtime/debug"
)

// garbagePercent is the GOGC value: how much garbage may exist beside the live heap, in percent of it, before a
// collection. A Pod's objects are small, long-lived and scattered among the garbage of the Pod's start, so nearly every
// page of the heap at its peak contains a live object and stays. The peak must therefore be low: with Go's default of
// 100 a node with 100 Pods keeps 2.3 MiB more for good.
const garbagePercent = 50

// TuneGC tunes the garbage collector of this process for a small heap. It must be called at start. The environment
// variable GOGC overrides it. If profiles is false, allocations are not sampled either: sampling touches a page for
// each place in the program that allocates.
func TuneGC(profiles bool) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
	if !profiles {
		runtime.MemProfileRate = 0
	}
}
