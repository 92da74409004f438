package harness

import (
	"context"
	"runtime"
	"syscall"
	"time"
)

// Meter measures a piece of work of this process.
type Meter struct {
	began time.Time
	cpu   time.Duration
	alloc uint64
}

// Spent is what a piece of work took. CPU is user and system time of the whole process: unlike Wall it hardly depends on
// the load of the machine.
type Spent struct {
	Wall, CPU time.Duration
	// Allocated counts the bytes allocated, freed ones included.
	Allocated uint64
}

// StartMeter starts a measurement after a garbage collection.
func StartMeter() Meter {
	runtime.GC()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	return Meter{alloc: mem.TotalAlloc, cpu: CPUTime(), began: time.Now()}
}

// Stop ends the measurement.
func (m Meter) Stop() Spent {
	spent := Spent{Wall: time.Since(m.began), CPU: CPUTime() - m.cpu}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	spent.Allocated = mem.TotalAlloc - m.alloc
	return spent
}

// CPUTime is the user and system time that this process has used.
func CPUTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// HeapInUse is how many bytes live objects take, after a garbage collection.
func HeapInUse() uint64 {
	runtime.GC()
	runtime.GC() // what the first one's finalizers have released
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	return mem.HeapAlloc
}

// Milliseconds is a duration in ms.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Pause waits for d, or until ctx ends, whose error it then returns.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
