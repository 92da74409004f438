package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/testbed"
)

const (
	// connectTimeout bounds one attempt to connect: before the kernel has rules for a Service its packets get no response.
	connectTimeout = 20 * time.Millisecond
	connectPause   = time.Millisecond
	checkers       = 16
)

// oneAtATime measures Services that come one after the other.
func (f *fixture) oneAtATime(ctx context.Context, s *harness.Sample) error {
	names, err := f.each(ctx, f.timeName)
	if err != nil {
		return err
	}
	addresses, pods, err := f.prepareEndpoints(ctx)
	if err != nil {
		return err
	}
	endpoints, err := f.each(ctx, func(ctx context.Context, i int) (time.Duration, error) {
		return f.timeEndpoint(ctx, addresses[i], pods[i])
	})
	if err != nil {
		return err
	}
	for metric, values := range map[string][]float64{"name resolved": names, "endpoint reachable": endpoints} {
		s.Set(metric+" p50", harness.Quantile(values, 0.5))
		s.Set(metric+" p99", harness.Quantile(values, 0.99))
		s.Keep(metric+" p50", values)
	}
	return nil
}

// each calls measure once for each Service, at the pace of the benchmark, and returns the times in ms.
func (f *fixture) each(ctx context.Context, measure func(ctx context.Context, i int) (time.Duration, error)) ([]float64, error) {
	pause := time.NewTicker(pace)
	defer pause.Stop()
	values := make([]float64, sequential)
	for i := range values {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		took, err := measure(ctx, i)
		if err != nil {
			return nil, err
		}
		values[i] = harness.Milliseconds(took)
	}
	return values, nil
}

// timeName returns how long after its creation the name of a new Service is resolved, 0 if before the API server's response.
func (f *fixture) timeName(ctx context.Context, i int) (_ time.Duration, err error) {
	name := fmt.Sprint("name-", i)
	full := name + "." + namespace + suffix
	resolver, err := testbed.NewResolver(ctx, f.services.DNS)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, resolver.Close()) }()
	// The name must be known to be missing, so that a cache of that would be seen.
	switch address, err := resolver.Lookup(full); {
	case err != nil:
		return 0, err
	case address.IsValid():
		return 0, fmt.Errorf("%s has the address %s before it exists", full, address)
	}
	var resolved time.Time
	waiting, ctx := errgroup.WithContext(ctx)
	waiting.Go(func() error {
		var err error
		resolved, err = resolver.WaitName(ctx, full)
		return err
	})
	_, createErr := f.createService(ctx, name, name)
	created := time.Now()
	if err := errors.Join(createErr, waiting.Wait()); err != nil {
		return 0, err
	}
	return max(0, resolved.Sub(created)), nil
}

// prepareEndpoints creates Services with one Pod each that is not Ready, and returns when the kernel rejects connections to
// all of them.
func (f *fixture) prepareEndpoints(ctx context.Context) ([]string, []*corev1.Pod, error) {
	addresses, pods := make([]string, sequential), make([]*corev1.Pod, sequential)
	for i := range sequential {
		name := fmt.Sprint("endpoint-", i)
		var err error
		if addresses[i], err = f.createService(ctx, name, name); err != nil {
			return nil, nil, err
		}
		if pods[i], err = f.createPod(ctx, name); err != nil {
			return nil, nil, err
		}
	}
	for _, address := range addresses {
		if err := waitConnect(ctx, address, isRefused); err != nil {
			return nil, nil, fmt.Errorf("wait for rules that refuse connections to %s: %w", address, err)
		}
	}
	return addresses, pods, nil
}

// timeEndpoint returns how long after its Pod is Ready a Service is reachable, 0 if before the API server's response.
func (f *fixture) timeEndpoint(ctx context.Context, address string, pod *corev1.Pod) (time.Duration, error) {
	var reached time.Time
	waiting, ctx := errgroup.WithContext(ctx)
	waiting.Go(func() error {
		err := waitConnect(ctx, address, isAccepted)
		reached = time.Now()
		return err
	})
	ready, readyErr := f.makeReady(ctx, pod)
	if err := errors.Join(readyErr, waiting.Wait()); err != nil {
		return 0, err
	}
	return max(0, reached.Sub(ready)), nil
}

// waitConnect connects to the address until the result is the wanted one.
func waitConnect(ctx context.Context, address string, wanted func(error) bool) error {
	dialer := net.Dialer{Timeout: connectTimeout}
	pause := time.NewTicker(connectPause)
	defer pause.Stop()
	for {
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err == nil {
			_ = conn.Close() // nothing was written
		}
		if wanted(err) {
			return nil
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("connect to %s: %w", address, ctx.Err()), err)
		}
	}
}
