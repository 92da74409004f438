package pod

import (
	"context"
	"errors"
	"time"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/testbed"
)

const (
	restTime = 20 * time.Second // after the last Pod is ready, before anything counts
	idleTime = 30 * time.Second
)

func runIdle(ctx context.Context, sample *harness.Sample, which testbed.Kubelet, pods int) error {
	s, err := newFixture(ctx, which, plan{count: pods, hostNetwork: true, together: true})
	if err != nil {
		return err
	}
	err = s.idle(ctx, sample)
	return errors.Join(err, s.Close())
}

func (s *fixture) idle(ctx context.Context, sample *harness.Sample) error {
	if err := s.one(ctx, "warm", &results{}); err != nil {
		return err
	}
	if _, err := s.each(ctx, s.create, isReady); err != nil {
		return err
	}
	if err := harness.Pause(ctx, restTime); err != nil {
		return err
	}
	pids := []int{s.Node.PID, s.Cluster.RuntimePID}
	before, err := usages(pids)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := harness.Pause(ctx, idleTime); err != nil {
		return err
	}
	after, err := usages(pids)
	if err != nil {
		return err
	}
	minutes := time.Since(began).Minutes()
	sample.Set("CPU of the kubelet", (after[0].CPU-before[0].CPU).Seconds()/minutes)
	sample.Set("CPU of containerd", (after[1].CPU-before[1].CPU).Seconds()/minutes)
	sample.Set("memory of the kubelet", float64(after[0].RSS)/(1<<20))
	sample.Set("of that private", float64(after[0].Private)/(1<<20))
	_, err = s.each(ctx, s.remove, isGone)
	return err
}
