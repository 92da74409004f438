package pod

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/testbed"
)

const (
	creators = 16
	// deleteDelay is the time between ready and deletion of a Pod. A process that has just started may not have its signal
	// handler yet and would stop only after the grace period, which is not what is measured.
	deleteDelay = 200 * time.Millisecond
)

// fixture is the test node of a sample with a watch of its Pods.
type fixture struct {
	*testbed.TestNode
	plan  plan
	watch *watcher
}

// newFixture starts the kubelet and creates what the Pods need.
func newFixture(ctx context.Context, which testbed.Kubelet, p plan) (_ *fixture, err error) {
	base, err := testbed.StartTestNode(ctx, which, settings(), testbed.NodeConfig{StaticCPUs: p.static})
	if err != nil {
		return nil, err
	}
	s := &fixture{TestNode: base, plan: p}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if p.stateful {
		if err := s.StartLocalProvisioner(ctx); err != nil {
			return nil, err
		}
	}
	if s.watch, err = watchPods(ctx, s.Client, s.Namespace); err != nil {
		return nil, err
	}
	s.Defer(s.watch.stop)
	return s, nil
}

// create creates a Pod and returns the time of the request.
func (s *fixture) create(ctx context.Context, name string) (time.Time, error) {
	began := time.Now()
	if s.plan.stateful {
		_, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Create(ctx, claim(name), metav1.CreateOptions{})
		if err != nil {
			return began, fmt.Errorf("create claim: %w", err)
		}
	}
	_, err := s.Client.CoreV1().Pods(s.Namespace).Create(ctx, s.plan.pod(s.Cluster, name), metav1.CreateOptions{})
	if err != nil {
		return began, fmt.Errorf("create Pod: %w", err)
	}
	return began, nil
}

// remove deletes a Pod and returns the time of the request.
func (s *fixture) remove(ctx context.Context, name string) (time.Time, error) {
	began := time.Now()
	if err := s.Client.CoreV1().Pods(s.Namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return began, fmt.Errorf("delete Pod: %w", err)
	}
	return began, nil
}

// results are the times of a sample.
type results struct {
	ready, gone       []float64 // ms, of each Pod
	allReady, allGone time.Duration
}

func run(ctx context.Context, sample *harness.Sample, which testbed.Kubelet, p plan) error {
	s, err := newFixture(ctx, which, p)
	if err != nil {
		return err
	}
	err = s.measure(ctx, sample)
	return errors.Join(err, s.Close())
}

func (s *fixture) measure(ctx context.Context, sample *harness.Sample) error {
	// The first Pod of a kubelet is slower; it is not counted.
	if err := s.one(ctx, "warm", &results{}); err != nil {
		return err
	}
	pids := []int{s.Node.PID, s.Cluster.RuntimePID}
	before, err := testbed.UsagesOf(pids)
	if err != nil {
		return err
	}
	whole, err := testbed.MachineCPU()
	if err != nil {
		return err
	}
	var r results
	if s.plan.together {
		err = s.all(ctx, &r)
	} else {
		for i := 0; i < s.plan.count && err == nil; i++ {
			err = s.one(ctx, podName(i), &r)
		}
	}
	if err != nil {
		return err
	}
	after, err := testbed.UsagesOf(pids)
	if err != nil {
		return err
	}
	report(sample, s.plan, &r)
	if err := reportMachine(sample, s.plan, whole); err != nil {
		return err
	}
	pods := float64(s.plan.count)
	sample.Set("CPU of the kubelet a Pod", harness.Milliseconds(after[0].CPU-before[0].CPU)/pods)
	sample.Set("CPU of containerd a Pod", harness.Milliseconds(after[1].CPU-before[1].CPU)/pods)
	return nil
}

// one creates a Pod, waits until it is ready, deletes it and waits until it is gone.
func (s *fixture) one(ctx context.Context, name string, r *results) error {
	began, err := s.create(ctx, name)
	if err != nil {
		return err
	}
	ready, err := s.watch.until(ctx, name, isReady)
	if err != nil {
		return err
	}
	if err := harness.Pause(ctx, deleteDelay); err != nil {
		return err
	}
	deleted, err := s.remove(ctx, name)
	if err != nil {
		return err
	}
	gone, err := s.watch.until(ctx, name, isGone)
	if err != nil {
		return err
	}
	r.ready = append(r.ready, harness.Milliseconds(ready.Sub(began)))
	r.gone = append(r.gone, harness.Milliseconds(gone.Sub(deleted)))
	return harness.Pause(ctx, deleteDelay) // what a kubelet does after the object is gone is no part of the next Pod's start
}

// all creates all Pods at once, and deletes all at once when all are ready.
func (s *fixture) all(ctx context.Context, r *results) error {
	began := time.Now()
	var err error
	if r.ready, err = s.each(ctx, s.create, isReady); err != nil {
		return err
	}
	r.allReady = time.Since(began)
	if err := harness.Pause(ctx, deleteDelay); err != nil {
		return err
	}
	began = time.Now()
	if r.gone, err = s.each(ctx, s.remove, isGone); err != nil {
		return err
	}
	r.allGone = time.Since(began)
	return nil
}

// each calls do for all Pods and waits for the state that follows; it returns how long that took for each.
func (s *fixture) each(
	ctx context.Context, do func(context.Context, string) (time.Time, error), what state,
) ([]float64, error) {
	var (
		mu    sync.Mutex // guards times and errs
		times = make([]float64, 0, s.plan.count)
		errs  error
		all   sync.WaitGroup
		slots = make(chan struct{}, creators)
	)
	for i := range s.plan.count {
		all.Go(func() {
			slots <- struct{}{}
			began, err := do(ctx, podName(i))
			<-slots
			var at time.Time
			if err == nil {
				at, err = s.watch.until(ctx, podName(i), what)
			}
			mu.Lock()
			defer mu.Unlock()
			times, errs = append(times, harness.Milliseconds(at.Sub(began))), errors.Join(errs, err)
		})
	}
	all.Wait()
	return times, errs
}

// reportMachine sets the CPU time of all processes of the machine since it was before, which is that of the Pods on a machine where
// nothing else runs.
func reportMachine(sample *harness.Sample, p plan, before time.Duration) error {
	after, err := testbed.MachineCPU()
	if err != nil {
		return err
	}
	sample.Set("CPU of the machine a Pod", harness.Milliseconds(after-before)/float64(p.count))
	return nil
}

// report sets the metrics of the sample.
func report(sample *harness.Sample, p plan, r *results) {
	sample.Keep("create to ready", r.ready)
	sample.Keep("delete to gone", r.gone)
	sample.Set("ready p50", harness.Quantile(r.ready, 0.5))
	sample.Set("ready p99", harness.Quantile(r.ready, 0.99))
	sample.Set("gone p50", harness.Quantile(r.gone, 0.5))
	sample.Set("gone p99", harness.Quantile(r.gone, 0.99))
	if p.together {
		sample.Set("all ready", r.allReady.Seconds())
		sample.Set("all gone", r.allGone.Seconds())
	}
}
