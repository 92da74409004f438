package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/testbed"
)

// runBaseline makes the calls to the container runtime that a kubelet has to make.
func runBaseline(ctx context.Context, sample *harness.Sample, p plan) error {
	cluster, err := testbed.ClusterFromEnv()
	if err != nil {
		return err
	}
	runtime, err := testbed.Dial(cluster.Runtime)
	if err != nil {
		return err
	}
	defer runtime.Close() //nolint:errcheck // all its calls have ended
	f := baselineRun{cluster: cluster, runtime: runtime, plan: p}
	if err := f.one(ctx, "warm", &results{}); err != nil {
		return err
	}
	before, err := testbed.UsageOf(cluster.RuntimePID)
	if err != nil {
		return err
	}
	whole, err := testbed.MachineCPU()
	if err != nil {
		return err
	}
	var r results
	if p.together {
		err = f.all(ctx, &r)
	} else {
		for i := 0; i < p.count && err == nil; i++ {
			err = f.one(ctx, podName(i), &r)
		}
	}
	if err != nil {
		return err
	}
	after, err := testbed.UsageOf(cluster.RuntimePID)
	if err != nil {
		return err
	}
	report(sample, p, &r)
	if err := reportMachine(sample, p, whole); err != nil {
		return err
	}
	sample.Set("CPU of containerd a Pod", harness.Milliseconds(after.CPU-before.CPU)/float64(p.count))
	return nil
}

type baselineRun struct {
	cluster *testbed.Cluster
	runtime *testbed.Runtime
	plan    plan
}

func (f *baselineRun) create(ctx context.Context, name string) (*testbed.RuntimePod, error) {
	return f.runtime.Create(ctx, f.cluster, fmt.Sprintf("baseline-%d-%s", os.Getpid(), name), f.plan.runtime, f.plan.hostNetwork)
}

func (f *baselineRun) one(ctx context.Context, name string, r *results) error {
	began := time.Now()
	pod, err := f.create(ctx, name)
	if err != nil {
		return err
	}
	r.ready = append(r.ready, harness.Milliseconds(time.Since(began)))
	if err := harness.Pause(ctx, deleteDelay); err != nil {
		return err
	}
	began = time.Now()
	if err := f.runtime.Remove(ctx, pod); err != nil {
		return err
	}
	r.gone = append(r.gone, harness.Milliseconds(time.Since(began)))
	return harness.Pause(ctx, deleteDelay)
}

// all makes the calls for all Pods at once; those for one Pod follow each other.
func (f *baselineRun) all(ctx context.Context, r *results) error {
	pods := make([]*testbed.RuntimePod, f.plan.count)
	began := time.Now()
	var err error
	r.ready, err = f.each(func(i int) error {
		var err error
		pods[i], err = f.create(ctx, podName(i))
		return err
	})
	if err != nil {
		return err
	}
	r.allReady = time.Since(began)
	if err := harness.Pause(ctx, deleteDelay); err != nil {
		return err
	}
	began = time.Now()
	r.gone, err = f.each(func(i int) error { return f.runtime.Remove(ctx, pods[i]) })
	r.allGone = time.Since(began)
	return err
}

// each calls do for all Pods at once and returns when each call ended, counted from the start of all.
func (f *baselineRun) each(do func(i int) error) ([]float64, error) {
	var (
		times = make([]float64, f.plan.count)
		errs  = make([]error, f.plan.count)
		all   sync.WaitGroup
	)
	began := time.Now()
	for i := range f.plan.count {
		all.Go(func() {
			errs[i] = do(i)
			times[i] = harness.Milliseconds(time.Since(began))
		})
	}
	all.Wait()
	return times, errors.Join(errs...)
}
