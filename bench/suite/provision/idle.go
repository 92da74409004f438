package provision

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/testbed"
)

const (
	idleClaims    = 10_000
	idleNamespace = "bench-idle"
	idleTime      = time.Minute
)

// idleVariant measures what a provisioner does while nothing happens.
func idleVariant(name string, run engine) harness.Variant {
	return harness.Variant{Name: name, Run: func(ctx context.Context, s *harness.Sample) error {
		return idle(ctx, s, run)
	}}
}

func idle(ctx context.Context, s *harness.Sample, run engine) error {
	client, config, err := testbed.Client(os.Getenv(testbed.EnvKubeconfig))
	if err != nil {
		return err
	}
	var counted writes
	own, err := counted.client(config, false)
	if err != nil {
		return err
	}
	p := &fixture{name: idleNamespace, client: client}
	running, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	switch filled, err := newFixture(ctx, client, idleNamespace); {
	case err == nil:
		// The first sample creates the claims for all; they stay until the control plane stops.
		if err := filled.fill(ctx); err != nil {
			return err
		}
	case !apierrors.IsAlreadyExists(err):
		return err
	default:
		if err := p.checkFull(ctx); err != nil {
			return err
		}
	}
	go func() { done <- run(running, own, p.provisioner()) }()
	if err := p.warm(ctx, fmt.Sprint("warm-", os.Getpid())); err != nil {
		return err
	}
	if err := waitIdle(ctx); err != nil {
		return err
	}
	counted.reset()
	meter := harness.StartMeter()
	if err := harness.Pause(ctx, idleTime); err != nil {
		return err
	}
	spent := meter.Stop()
	s.Set("CPU", 100*spent.CPU.Seconds()/spent.Wall.Seconds())
	s.Set("writes", float64(counted.Load()+counted.refused.Load())/spent.Wall.Minutes())
	s.Set("heap", float64(harness.HeapInUse())/(1<<20))
	stop()
	return finish(done)
}

// fill creates the claims, which Berth binds.
func (p *fixture) fill(ctx context.Context) error {
	running, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- runBerth(running, p.client, p.provisioner()) }()
	_, createErr := p.create(ctx, idleClaims)
	if createErr != nil {
		return createErr
	}
	_, err := p.watchBound(ctx, idleClaims)
	stop()
	return errors.Join(err, finish(done))
}

// checkFull returns an error if the sample that had to create the claims did not complete.
func (p *fixture) checkFull(ctx context.Context) error {
	list, err := p.client.CoreV1().PersistentVolumeClaims(p.name).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("count claims: %w", err)
	}
	bound := 0
	for i := range list.Items {
		if list.Items[i].Status.Phase == corev1.ClaimBound {
			bound++
		}
	}
	if bound < idleClaims {
		return fmt.Errorf("there are %d bound claims of %d: an earlier sample was interrupted while it created them", bound, idleClaims)
	}
	return nil
}

// waitIdle returns when five seconds have passed in which the process used hardly any CPU: what follows a start, such as
// writing events, is then over.
func waitIdle(ctx context.Context) error {
	for {
		before := harness.CPUTime()
		if err := harness.Pause(ctx, 5*time.Second); err != nil {
			return err
		}
		if harness.CPUTime()-before < 50*time.Millisecond {
			return nil
		}
	}
}
