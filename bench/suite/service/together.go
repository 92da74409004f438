package service

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/testbed"
)

func isAccepted(err error) bool { return err == nil }

func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// atOnce measures many Services that are created at once.
func (f *fixture) atOnce(ctx context.Context, s *harness.Sample) error {
	pod, err := f.createPod(ctx, "shared")
	if err != nil {
		return err
	}
	if _, err := f.makeReady(ctx, pod); err != nil {
		return err
	}
	before, err := testbed.UsagesOf(f.pids())
	if err != nil {
		return err
	}
	began := time.Now()
	addresses := make([]string, together)
	if err := inParallel(ctx, func(ctx context.Context, i int) error {
		var err error
		addresses[i], err = f.createService(ctx, fmt.Sprint("together-", i), pod.Name)
		return err
	}); err != nil {
		return err
	}
	s.Set("created", time.Since(began).Seconds())
	var checks errgroup.Group
	checks.Go(func() error {
		err := f.resolveAll(ctx)
		s.Set("all names resolved", time.Since(began).Seconds())
		return err
	})
	reachErr := inParallel(ctx, func(ctx context.Context, i int) error { return waitConnect(ctx, addresses[i], isAccepted) })
	reached := time.Since(began)
	if err := errors.Join(reachErr, checks.Wait()); err != nil {
		return err
	}
	s.Set("all reachable", reached.Seconds())
	after, err := testbed.UsagesOf(f.pids())
	if err != nil {
		return err
	}
	for i, part := range []string{"kube-proxy", "DNS"} {
		s.Set("CPU of "+part, (after[i].CPU - before[i].CPU).Seconds())
		memory, err := testbed.MemoryOf(f.pids()[i])
		if err != nil {
			return err
		}
		s.Set("memory of "+part, float64(memory.Proportional)/(1<<20))
	}
	return nil
}

// resolveAll returns when the names of all Services are resolved.
func (f *fixture) resolveAll(ctx context.Context) error {
	resolver, err := testbed.NewResolver(ctx, f.services.DNS)
	if err != nil {
		return err
	}
	for i := range together {
		if _, err := resolver.WaitName(ctx, fmt.Sprint("together-", i, ".", namespace, suffix)); err != nil {
			return errors.Join(err, resolver.Close())
		}
	}
	return resolver.Close()
}

// inParallel calls do for each of the Services, several at a time.
func inParallel(ctx context.Context, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(checkers)
	for i := range together {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

func (f *fixture) pids() []int { return []int{f.services.ProxyPID, f.services.DNSPID} }
