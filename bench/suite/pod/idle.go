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
	idling, err := testbed.MeasureIdle(ctx, pids, idleTime)
	if err != nil {
		return err
	}
	sample.Set("CPU of the kubelet", idling[0].SecondsPerMinute())
	sample.Set("CPU of containerd", idling[1].SecondsPerMinute())
	sample.Set("memory of the kubelet", float64(idling[0].Usage.RSS)/(1<<20))
	sample.Set("of that private", float64(idling[0].Usage.Private)/(1<<20))
	_, err = s.each(ctx, s.remove, isGone)
	return err
}
