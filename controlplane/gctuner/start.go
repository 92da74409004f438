package gctuner

import (
	"os"
	"runtime"
	"runtime/debug"
)

const (
	// StartGarbage and ProxyGarbage, in bytes, are how much the control plane and kube-proxy may allocate before their first collection:
	// what their start allocates.
	StartGarbage = 256 << 20
	ProxyGarbage = 32 << 20
	// heapMinimum, in bytes, is the heap at which Go begins the first collection with a GOGC of 100.
	heapMinimum = 4 << 20
)

// DeferFirst lets a process that starts allocate much before its first collection: nearly all that the start of an API server
// allocates stays, and to find that out again and again is a fifth of its CPU time. From the first collection on Go's default
// applies, or what Run sets, which also causes it when the process has started. What may be allocated is most, in bytes, or less
// on a machine with little memory. If the environment variable GOGC is set, DeferFirst does nothing.
func DeferFirst(most uint64) {
	if os.Getenv("GOGC") != "" {
		return
	}
	memory, err := availableMemory()
	if err != nil {
		return // Run reports it
	}
	deferFirst(min(most, maxGarbageFor(memory)))
}

func deferFirst(most uint64) {
	percent := int(most * normalPercent / heapMinimum)
	if percent <= normalPercent {
		return
	}
	debug.SetGCPercent(percent)
	runtime.SetFinalizer(&firstCollection{}, func(*firstCollection) {
		// Unless Run has set it already.
		if former := debug.SetGCPercent(normalPercent); former != percent {
			debug.SetGCPercent(former)
		}
	})
}

// firstCollection is an object without references, which the first collection finalizes.
type firstCollection struct{ _ [16]byte }
