package testbed

import (
	"context"
	"time"

	"github.com/berth-dev/berth/bench/harness"
)

// Idling is what a process uses while nothing happens.
type Idling struct {
	// CPU is the part of one processor's time that it uses.
	CPU float64
	// Usage is what it has used until then.
	Usage Usage
}

// SecondsPerMinute is the CPU time, in seconds, that the process uses in a minute.
func (i Idling) SecondsPerMinute() float64 { return i.CPU * time.Minute.Seconds() }

// MeasureIdle waits for the duration and returns what each of the processes used in it. The caller ensures that nothing happens.
func MeasureIdle(ctx context.Context, pids []int, duration time.Duration) ([]Idling, error) {
	before, err := UsagesOf(pids)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := harness.Pause(ctx, duration); err != nil {
		return nil, err
	}
	after, err := UsagesOf(pids)
	if err != nil {
		return nil, err
	}
	took := time.Since(began)
	all := make([]Idling, len(pids))
	for i := range pids {
		all[i] = Idling{CPU: (after[i].CPU - before[i].CPU).Seconds() / took.Seconds(), Usage: after[i]}
	}
	return all, nil
}

// UsagesOf reads what several processes have used.
func UsagesOf(pids []int) ([]Usage, error) {
	all := make([]Usage, len(pids))
	for i, pid := range pids {
		var err error
		if all[i], err = UsageOf(pid); err != nil {
			return nil, err
		}
	}
	return all, nil
}
