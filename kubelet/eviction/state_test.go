package eviction

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

const gi = 1 << 30

// memory is an observation of that much available memory of 8 GiB.
func memory(available int64) Observations {
	return Observations{MemoryAvailable: {Available: available, Capacity: 8 * gi}}
}

func TestHardThresholdIsDueAtOnce(t *testing.T) {
	thresholds := parse(t, Config{Hard: map[string]string{"memory.available": "1Gi"}})
	now := time.Unix(1000, 0)
	s := state{}.next(thresholds, memory(2*gi), now)
	require.Empty(t, s.dueThresholds(thresholds))
	require.Empty(t, s.conditions(thresholds, time.Minute, now))
	s = s.next(thresholds, memory(gi), now)
	require.Empty(t, s.dueThresholds(thresholds), "the amount itself is enough")
	s = s.next(thresholds, memory(gi-1), now)
	require.Len(t, s.dueThresholds(thresholds), 1)
	require.Equal(t, []Condition{{corev1.NodeMemoryPressure, "memory.available<1Gi"}}, s.conditions(thresholds, time.Minute, now))

	now = now.Add(time.Second)
	s = s.next(thresholds, memory(2*gi), now)
	require.Empty(t, s.dueThresholds(thresholds))
	require.Len(t, s.conditions(thresholds, time.Minute, now.Add(58*time.Second)), 1, "the condition outlasts its cause")
	require.Empty(t, s.conditions(thresholds, time.Minute, now.Add(59*time.Second)))
}

func TestSoftThresholdWaitsForItsGracePeriod(t *testing.T) {
	thresholds := parse(t, Config{Soft: map[string]string{"memory.available": "1Gi"}, SoftGracePeriod: map[string]string{"memory.available": "1m"}})
	now := time.Unix(1000, 0)
	s := state{}.next(thresholds, memory(0), now)
	require.Empty(t, s.dueThresholds(thresholds))
	require.Len(t, s.conditions(thresholds, time.Minute, now), 1, "the node has the condition at once")
	require.Equal(t, maxInterval, s.nextObservation(thresholds, memory(0), nil, time.Minute, now))
	require.Equal(t, time.Second, s.nextObservation(thresholds, memory(0), nil, time.Minute, now.Add(59*time.Second)))
	interrupted := s.next(thresholds, memory(gi), now.Add(30*time.Second)).next(thresholds, memory(0), now.Add(time.Minute))
	require.Empty(t, interrupted.dueThresholds(thresholds), "the period starts again")
	s = s.next(thresholds, memory(0), now.Add(time.Minute))
	require.Len(t, s.dueThresholds(thresholds), 1)
}

func TestMinimumReclaimKeepsAThresholdDue(t *testing.T) {
	thresholds := parse(t, Config{
		Hard: map[string]string{"memory.available": "1Gi"}, MinimumReclaim: map[string]string{"memory.available": "1Gi"},
	})
	now := time.Unix(1000, 0)
	s := state{}.next(thresholds, memory(2*gi-1), now)
	require.Empty(t, s.dueThresholds(thresholds))
	s = s.next(thresholds, memory(gi-1), now)
	s = s.next(thresholds, memory(2*gi-1), now)
	require.Len(t, s.dueThresholds(thresholds), 1)
	s = s.next(thresholds, memory(2*gi), now)
	require.Empty(t, s.dueThresholds(thresholds))
}

func TestMemoryComesFirst(t *testing.T) {
	thresholds := parse(t, Config{
		Hard: map[string]string{"imagefs.available": "10%", "memory.available": "10%", "pid.available": "10%"},
		Soft: map[string]string{"memory.available": "20%"}, SoftGracePeriod: map[string]string{"memory.available": "1ns"},
	})
	full := Observation{Capacity: 100}
	observed := Observations{ImageFsAvailable: full, MemoryAvailable: full, PIDAvailable: full}
	now := time.Unix(1000, 0)
	s := state{}.next(thresholds, observed, now).next(thresholds, observed, now.Add(time.Second))
	var order []string
	for _, threshold := range s.dueThresholds(thresholds) {
		order = append(order, string(threshold.Signal)+threshold.Value.String())
	}
	require.Equal(t, []string{"memory.available10%", "memory.available20%", "imagefs.available10%", "pid.available10%"}, order)
	require.Len(t, s.conditions(thresholds, time.Minute, now), 3)
}

func TestMissingObservationDecidesNothing(t *testing.T) {
	thresholds := parse(t, Config{Hard: DefaultHard()})
	s := state{}.next(thresholds, Observations{}, time.Unix(1000, 0))
	require.Empty(t, s.dueThresholds(thresholds))
	require.Equal(t, maxInterval, s.nextObservation(thresholds, Observations{}, nil, time.Minute, time.Unix(1000, 0)))
}

// TestNextObservation has the time in which a resource can run out at the earliest.
func TestNextObservation(t *testing.T) {
	thresholds := parse(t, Config{Hard: map[string]string{"memory.available": "1Gi", "nodefs.available": "1Gi", "pid.available": "1000"}})
	now := time.Unix(1000, 0)
	free := Observations{
		MemoryAvailable: {Available: 100 * gi, Capacity: 100 * gi}, NodeFsAvailable: {Available: 100 * gi, Capacity: 100 * gi},
		PIDAvailable: {Available: 4_000_000, Capacity: 4_000_000},
	}
	for name, test := range map[string]struct {
		signal    Signal
		available int64
		reported  map[Signal]bool
		want      time.Duration
	}{
		"much of all":                 {MemoryAvailable, 100 * gi, nil, maxInterval},
		"memory at 4 GiB/s":           {MemoryAvailable, 5 * gi, nil, time.Second},
		"memory that the kernel says": {MemoryAvailable, 2 * gi, map[Signal]bool{MemoryAvailable: true}, maxInterval},
		"disk at 2 GiB/s":             {NodeFsAvailable, 5 * gi, nil, 2 * time.Second},
		"disk that is nearly short":   {NodeFsAvailable, gi + 4096, nil, minInterval},
		"processes at 20000/s":        {PIDAvailable, 31000, nil, 1500 * time.Millisecond},
	} {
		observed := Observations{}
		for signal, o := range free {
			observed[signal] = o
		}
		observed[test.signal] = Observation{Available: test.available, Capacity: 4_000_000_000_000}
		s := state{}.next(thresholds, observed, now)
		require.Equal(t, test.want, s.nextObservation(thresholds, observed, test.reported, time.Minute, now), name)
	}
}
