package resourcemetrics

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

const (
	// minWindow is the shortest time between two readings: what a first request waits for.
	minWindow = time.Second
	// preferredWindow is the time over which a rate is computed if readings are that old: that of metrics-server.
	preferredWindow = 15 * time.Second
	// maxWindow is the age from which a reading says nothing about now.
	maxWindow = time.Minute
)

// podUsage is what a Pod's containers used.
type podUsage struct {
	uid        types.UID
	containers map[string]usage
}

// nodeUsage is what a node and its Pods used.
type nodeUsage struct {
	node *usage // nil if unknown
	pods map[podKey]podUsage
}

// sampler keeps the latest readings of one kubelet. It is safe for concurrent use.
type sampler struct {
	read  func(ctx context.Context) (*reading, error)
	clock clock.Clock
	// busy has an element while a request works with the fields below.
	busy     chan struct{}
	readings []*reading // the oldest first
	usage    *nodeUsage // of the last reading
}

func newSampler(read func(context.Context) (*reading, error), clock clock.Clock) *sampler {
	return &sampler{read: read, clock: clock, busy: make(chan struct{}, 1)}
}

// sample returns the current usage, at most minWindow old. Concurrent requests share the readings.
func (s *sampler) sample(ctx context.Context) (*nodeUsage, error) {
	select {
	case s.busy <- struct{}{}:
		defer func() { <-s.busy }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.forgetOld()
	if len(s.readings) == 0 {
		if err := s.add(ctx); err != nil {
			return nil, err
		}
		select {
		case <-s.clock.After(minWindow):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	last := s.readings[len(s.readings)-1]
	if s.usage != nil && s.clock.Since(last.taken) < minWindow {
		return s.usage, nil
	}
	if err := s.add(ctx); err != nil {
		return nil, err
	}
	s.usage = usageOf(s.readings)
	return s.usage, nil
}

func (s *sampler) add(ctx context.Context) error {
	r, err := s.read(ctx)
	if err != nil {
		return err
	}
	s.readings = append(s.readings, r)
	return nil
}

// forgetOld removes readings that are too old, and those beyond the one that the preferred window begins with.
func (s *sampler) forgetOld() {
	for len(s.readings) > 0 && s.clock.Since(s.readings[0].taken) > maxWindow {
		s.readings = s.readings[1:]
	}
	for len(s.readings) > 1 && s.clock.Since(s.readings[1].taken) >= preferredWindow {
		s.readings = s.readings[1:]
	}
	if len(s.readings) == 0 {
		s.usage = nil
	}
}

// usageOf computes the usage at the last of at least two readings, since the newest one that is preferredWindow older, else the oldest.
func usageOf(readings []*reading) *nodeUsage {
	now, base := readings[len(readings)-1], readings[0]
	for _, r := range readings[:len(readings)-1] {
		if now.taken.Sub(r.taken) >= preferredWindow {
			base = r
		}
	}
	u := &nodeUsage{pods: make(map[podKey]podUsage, len(now.pods))}
	if now.node != nil && base.node != nil {
		if node, ok := usageSince(base.node, *now.node); ok {
			u.node = &node
		}
	}
	for key, pod := range now.pods {
		before := base.pods[key]
		out := podUsage{uid: pod.uid, containers: make(map[string]usage, len(pod.containers))}
		for name, c := range pod.containers {
			var earlier *counters
			if e, ok := before.containers[name]; ok && before.uid == pod.uid {
				earlier = &e
			}
			if one, ok := usageSince(earlier, c); ok {
				out.containers[name] = one
			}
		}
		if len(out.containers) == len(pod.containers) {
			u.pods[key] = out
		}
	}
	return u
}
