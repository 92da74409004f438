package eviction

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Observation is how much of a resource is available, and of how much.
type Observation struct {
	Available, Capacity int64
	At                  time.Time
}

// Observations are the observed resources. One that could not be measured is missing.
type Observations map[Signal]Observation

// Condition is a pressure condition that the Node has.
type Condition struct {
	Type corev1.NodeConditionType
	// Detail names the thresholds that are met, or were; it does not change with each observation.
	Detail string
}

// state is what is remembered between observations. Its methods return new values; the zero value remembers nothing.
type state struct {
	// since is when each of the thresholds that are met was first met, by its index.
	since map[int]time.Time
	// due are the thresholds that have been met for their grace period.
	due map[int]bool
	// pressed is when each threshold was last met.
	pressed map[int]time.Time
}

// distance returns how much has to be used up until the threshold is met; it is negative if the threshold is met.
// withReclaim counts the minimum reclaim.
func (t *Threshold) distance(o Observation, withReclaim bool) int64 {
	wanted := t.Value.of(o.Capacity)
	if withReclaim {
		wanted += t.MinReclaim.of(o.Capacity)
	}
	return o.Available - wanted
}

// next returns the state after an observation.
func (s state) next(thresholds []Threshold, observed Observations, now time.Time) state {
	out := state{since: map[int]time.Time{}, due: map[int]bool{}, pressed: maps.Clone(s.pressed)}
	if out.pressed == nil {
		out.pressed = map[int]time.Time{}
	}
	for i := range thresholds {
		t := &thresholds[i]
		o, known := observed[t.Signal]
		if !known || t.distance(o, s.due[i]) >= 0 {
			continue
		}
		since, before := s.since[i]
		if !before {
			since = now
		}
		out.since[i], out.pressed[i] = since, now
		if now.Sub(since) >= t.Grace {
			out.due[i] = true
		}
	}
	return out
}

// conditions returns the conditions of the Node, sorted: those of thresholds that are met or were within the period.
func (s state) conditions(thresholds []Threshold, period time.Duration, now time.Time) []Condition {
	details := map[corev1.NodeConditionType][]string{}
	for i, at := range s.pressed {
		if _, met := s.since[i]; met || now.Sub(at) < period {
			t := &thresholds[i]
			details[t.Signal.condition()] = append(details[t.Signal.condition()], fmt.Sprintf("%s<%s", t.Signal, t.Value))
		}
	}
	var out []Condition
	for _, kind := range slices.Sorted(maps.Keys(details)) {
		names := details[kind]
		slices.Sort(names)
		out = append(out, Condition{Type: kind, Detail: strings.Join(slices.Compact(names), ", ")})
	}
	return out
}

// dueThresholds returns the thresholds to act upon, the most urgent first: memory before all others, hard ones before soft ones.
func (s state) dueThresholds(thresholds []Threshold) []Threshold {
	var out []Threshold
	for i := range thresholds {
		if s.due[i] {
			out = append(out, thresholds[i])
		}
	}
	slices.SortStableFunc(out, func(a, b Threshold) int {
		other := func(t *Threshold) int {
			if t.Signal.resource() == corev1.ResourceMemory {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(other(&a), other(&b)), cmp.Compare(min(a.Grace, 1), min(b.Grace, 1)))
	})
	return out
}

// Bounds of the time between two observations.
const (
	// minInterval is that of a resource that may run out at any moment.
	minInterval = 250 * time.Millisecond
	// maxInterval is also that of resources whose use the kernel reports.
	maxInterval = 10 * time.Second
)

// nextObservation returns how long after an observation the next one is: the time in which a resource can run out at the
// earliest, or until a grace period or a condition ends. reported are the signals whose use the kernel reports.
func (s state) nextObservation(thresholds []Threshold, observed Observations, reported map[Signal]bool, period time.Duration, now time.Time,
) time.Duration {
	wait := maxInterval
	for i := range thresholds {
		t := &thresholds[i]
		if since, met := s.since[i]; met {
			if !s.due[i] {
				wait = min(wait, since.Add(t.Grace).Sub(now))
			}
			continue
		}
		if at, ok := s.pressed[i]; ok {
			if left := at.Add(period).Sub(now); left > 0 {
				wait = min(wait, left)
			}
		}
		o, known := observed[t.Signal]
		if !known || reported[t.Signal] {
			continue
		}
		info, _ := describe(t.Signal)
		seconds := float64(t.distance(o, false)) / float64(info.fastest)
		if seconds < maxInterval.Seconds() {
			wait = min(wait, time.Duration(seconds*float64(time.Second)))
		}
	}
	return max(wait, minInterval)
}
