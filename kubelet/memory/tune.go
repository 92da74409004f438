package memory

import (
	"os"
	"runtime"
	"runtime/debug"
)

// garbagePercent is how much garbage may lie beside what lives, in percent of that, before it is collected. The objects
// of a Pod live long and are small, and lie scattered among the garbage of the Pod's start: nearly every page that the
// heap had at its highest holds one of them in the end, and stays. So its highest point is what has to be low: with Go's
// own 100 a node of 100 Pods keeps 2.3 MiB more for good.
const garbagePercent = 50

// TuneGC has this process make do with little memory, for the rest of its life. To be called when it starts. The
// environment variable GOGC overrules it. Where nobody will ask for profiles, allocations are not sampled either, which
// touches a page for each place in the program that allocates.
func TuneGC(profiles bool) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
	if !profiles {
		runtime.MemProfileRate = 0
	}
}
