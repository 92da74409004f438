package gctuner

import "time"

const (
	// idlePercent is Go's default: a collection when garbage is as large as the live heap. busyPercent is the most: a
	// small process gains nothing from more, and one that has just started should not become large.
	idlePercent = 100
	busyPercent = 400
	// busyRate, in bytes a second, is the allocation rate of a busy process. An idle cluster allocates a hundredth of
	// it; one that starts Pods or binds claims, several times as much.
	busyRate = 32 << 20
	// maxGarbage, in bytes, is the most garbage beside the live heap, and memoryShare the part of the machine's memory,
	// or of the cgroup's limit, that it may be.
	maxGarbage  = 512 << 20
	memoryShare = 32
)

// maxGarbageFor returns the most garbage, in bytes, for a memory of that size.
func maxGarbageFor(memory uint64) uint64 { return min(maxGarbage, memory/memoryShare) }

// sample is the memory of the process at one moment.
type sample struct {
	at time.Time
	// allocated is the number of bytes allocated since the process started, live the number that the last collection kept.
	allocated, live uint64
}

// busySince reports whether the allocation rate since then was that of a busy process.
func (s sample) busySince(then sample) bool {
	seconds := s.at.Sub(then.at).Seconds()
	return seconds > 0 && float64(s.allocated-then.allocated)/seconds >= busyRate
}

// tuner computes GOGC. It is not safe for concurrent use.
type tuner struct {
	garbage uint64
	busy    bool
	// collected is the sample of the last collection, ticked that of the last tick or of the change to busy.
	collected, ticked sample
}

// onCollection updates the tuner after a collection.
func (p *tuner) onCollection(now sample) {
	if !p.busy && now.busySince(p.collected) {
		p.busy, p.ticked = true, now
	}
	p.collected = now
}

// onTick updates the tuner some time after the change to busy or after the last tick.
func (p *tuner) onTick(now sample) {
	p.busy = now.busySince(p.ticked)
	p.ticked = now
}

// percent returns the value of GOGC for the current state.
func (p *tuner) percent() int {
	if !p.busy || p.collected.live == 0 {
		return idlePercent
	}
	return int(min(busyPercent, max(idlePercent, p.garbage*100/p.collected.live)))
}
