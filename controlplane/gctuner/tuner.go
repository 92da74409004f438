package gctuner

import "time"

const (
	// idlePercent is Go's own pace: a collection when garbage is as large as what lives. busyPercent is the most: a
	// process that has little has no use for more, and one that has just started is not to look large.
	idlePercent = 100
	busyPercent = 400
	// busyRate, in bytes a second, is where calm ends. A cluster at rest allocates a hundredth of it; one that starts
	// Pods or binds claims, several times as much.
	busyRate = 32 << 20
	// maxGarbage, in bytes, is what may lie uncollected beside what lives, and memoryShare what part of the machine's
	// memory, or of what a control group allows of it, that may be.
	maxGarbage  = 512 << 20
	memoryShare = 32
)

// maxGarbageFor is how much garbage may lie where there are so many bytes of memory.
func maxGarbageFor(memory uint64) uint64 { return min(maxGarbage, memory/memoryShare) }

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

// tuner finds the pace. It is not safe for concurrent use.
type tuner struct {
	garbage uint64
	busy    bool
	// collected is the last collection's sample, ticked the last tick's, or that with which it became busy.
	collected, ticked sample
}

// onCollection takes note of a collection that has just ended.
func (p *tuner) onCollection(now sample) {
	if !p.busy && now.busySince(p.collected) {
		p.busy, p.ticked = true, now
	}
	p.collected = now
}

// onTick takes note that time has gone by since it became busy, or since the last tick.
func (p *tuner) onTick(now sample) {
	p.busy = now.busySince(p.ticked)
	p.ticked = now
}

// percent is the GC percentage that is right now.
func (p *tuner) percent() int {
	if !p.busy || p.collected.live == 0 {
		return idlePercent
	}
	return int(min(busyPercent, max(idlePercent, p.garbage*100/p.collected.live)))
}
