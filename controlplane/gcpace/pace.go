package gcpace

import "time"

const (
	// calmPercent is Go's own pace: a collection when garbage is as large as what lives. busyPercent is the most: a
	// process that has little has no use for more, and one that has just started is not to look large.
	calmPercent = 100
	busyPercent = 400
	// busyRate, in bytes a second, is where calm ends. A cluster at rest allocates a hundredth of it; one that starts
	// Pods or binds claims, several times as much.
	busyRate = 32 << 20
	// mostGarbage, in bytes, is what may lie uncollected beside what lives, and memoryShare what part of the machine's
	// memory, or of what a control group allows of it, that may be.
	mostGarbage = 512 << 20
	memoryShare = 32
)

// garbageFor is how much garbage may lie where there are so many bytes of memory.
func garbageFor(memory uint64) uint64 { return min(mostGarbage, memory/memoryShare) }

// sample is what the process is at.
type sample struct {
	at time.Time
	// allocated is how many bytes were allocated since the process began, live how many the last collection left.
	allocated, live uint64
}

// busySince returns whether more was allocated since then than at rest.
func (s sample) busySince(then sample) bool {
	seconds := s.at.Sub(then.at).Seconds()
	return seconds > 0 && float64(s.allocated-then.allocated)/seconds >= busyRate
}

// pacer finds the pace. It is not safe for concurrent use.
type pacer struct {
	garbage uint64
	busy    bool
	// collected is the last collection's sample, ticked the last tick's, or that with which it became busy.
	collected, ticked sample
}

// collection takes note of a collection that has just ended.
func (p *pacer) collection(now sample) {
	if !p.busy && now.busySince(p.collected) {
		p.busy, p.ticked = true, now
	}
	p.collected = now
}

// tick takes note that time has gone by since it became busy, or since the last tick.
func (p *pacer) tick(now sample) {
	p.busy = now.busySince(p.ticked)
	p.ticked = now
}

// percent is the GC percentage that is right now.
func (p *pacer) percent() int {
	if !p.busy || p.collected.live == 0 {
		return calmPercent
	}
	return int(min(busyPercent, max(calmPercent, p.garbage*100/p.collected.live)))
}
