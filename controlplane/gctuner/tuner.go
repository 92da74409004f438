package gctuner

import "time"

const (
	// normalPercent is Go's default: a collection when garbage is as large as the live heap. busyPercent is the most: a
	// small process gains nothing from more, and one that has just started should not become large. quietPercent keeps a
	// process small that allocates so little that Go's collection every two minutes comes first.
	quietPercent  = 25
	normalPercent = 100
	busyPercent   = 400
	// busyRate, in bytes a second, is the allocation rate of a busy process. An idle cluster allocates a hundredth of
	// it; one that starts Pods or binds claims, several times as much. A process at quietRate does next to nothing; it is
	// quiet until it is at wakeRate.
	busyRate  = 32 << 20
	wakeRate  = 4 << 20
	quietRate = 1 << 20
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

// load is how much a process allocates.
type load int

const (
	quiet load = iota
	normal
	busy
)

// rateSince returns the number of bytes allocated a second between then and s, and false if there is no time between them.
func (s sample) rateSince(then sample) (rate float64, known bool) {
	seconds := s.at.Sub(then.at).Seconds()
	return float64(s.allocated-then.allocated) / seconds, seconds > 0
}

// tuner computes GOGC. It is not safe for concurrent use.
type tuner struct {
	garbage uint64
	load    load
	// collected is the sample of the last collection, ticked that of the last tick or of the change to a higher load.
	collected, ticked sample
}

// onCollection updates the tuner after a collection.
func (p *tuner) onCollection(now sample) {
	if before := p.load; before != busy {
		if p.load = p.loadSince(p.collected, now); p.load > before {
			p.ticked = now
		}
	}
	p.collected = now
}

// onTick updates the tuner some time after the change to a higher load or after the last tick.
func (p *tuner) onTick(now sample) {
	p.load = p.loadSince(p.ticked, now)
	p.ticked = now
}

// loadSince returns the load between two samples.
func (p *tuner) loadSince(then, now sample) load {
	rate, known := now.rateSince(then)
	switch {
	case !known:
		return p.load
	case rate >= busyRate:
		return busy
	case rate < quietRate || p.load == quiet && rate < wakeRate:
		return quiet
	default:
		return normal
	}
}

// percent returns the value of GOGC for the current load.
func (p *tuner) percent() int {
	switch {
	case p.load == quiet:
		return quietPercent
	case p.load == normal || p.collected.live == 0:
		return normalPercent
	default:
		return int(min(busyPercent, max(normalPercent, p.garbage*100/p.collected.live)))
	}
}
