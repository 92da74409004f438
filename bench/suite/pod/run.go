package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/rig"
	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/local"
)

const (
	creators = 16
	// settleTime passes between a Pod's being ready and its end. A process that has only just been started may not have
	// its signal handler yet; it would then end with the grace period, which is not what is measured.
	settleTime = 200 * time.Millisecond
)

// scene is a node with a namespace of the sample's own.
type scene struct {
	cluster   *rig.Cluster
	client    kubernetes.Interface
	node      *rig.Node
	namespace string
	plan      plan
	watch     *watcher
	stops     []func() error
}

// open starts the kubelet and makes what the Pods need.
func open(ctx context.Context, which rig.Kubelet, p plan) (_ *scene, err error) {
	cluster, err := rig.ClusterFromEnv()
	if err != nil {
		return nil, err
	}
	client, _, err := rig.Client(cluster.Kubeconfig())
	if err != nil {
		return nil, err
	}
	s := &scene{cluster: cluster, client: client, plan: p, namespace: fmt.Sprint("bench-", os.Getpid())}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	_, err = client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create namespace: %w", err)
	}
	if _, err := client.CoreV1().ConfigMaps(s.namespace).Create(ctx, settings(), metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create ConfigMap: %w", err)
	}
	if s.node, err = rig.StartNode(ctx, cluster, which, client); err != nil {
		return nil, err
	}
	s.stops = append(s.stops, s.node.Stop)
	if p.stateful {
		if err := s.provide(ctx); err != nil {
			return nil, err
		}
	}
	if s.watch, err = watchPods(ctx, client, s.namespace); err != nil {
		return nil, err
	}
	s.stops = append(s.stops, s.watch.stop)
	return s, s.untilAccount(ctx)
}

// untilAccount waits for the namespace's service account, without which Pods are refused.
func (s *scene) untilAccount(ctx context.Context) error {
	changes, err := s.client.CoreV1().ServiceAccounts(s.namespace).Watch(ctx,
		metav1.ListOptions{FieldSelector: "metadata.name=default"})
	if err != nil {
		return fmt.Errorf("watch service accounts: %w", err)
	}
	defer changes.Stop()
	if _, open := <-changes.ResultChan(); !open {
		return fmt.Errorf("the watch of service accounts ended: %w", ctx.Err())
	}
	return nil
}

// provide runs the provisioner of stateful Pods, the same for both kubelets.
func (s *scene) provide(ctx context.Context) error {
	_, err := s.client.StorageV1().StorageClasses().Create(ctx, local.StorageClass(), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create class: %w", err)
	}
	provisioner, err := local.New(local.Deps{},
		local.Config{Root: filepath.Join(s.cluster.Dir, "volumes"), NodeName: rig.NodeName})
	if err != nil {
		return err
	}
	ctrl, err := provision.New(s.client, local.ProvisionerName, provisioner, provision.LeaderElection(false))
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- ctrl.RunContext(running) }()
	s.stops = append(s.stops, func() error {
		stop()
		return <-done
	})
	return nil
}

// close takes the scene down, the last first.
func (s *scene) close() error {
	var errs []error
	for i := len(s.stops) - 1; i >= 0; i-- {
		errs = append(errs, s.stops[i]())
	}
	return errors.Join(errs...)
}

// create makes a Pod and returns when it was asked for.
func (s *scene) create(ctx context.Context, name string) (time.Time, error) {
	began := time.Now()
	if s.plan.stateful {
		_, err := s.client.CoreV1().PersistentVolumeClaims(s.namespace).Create(ctx, claim(name), metav1.CreateOptions{})
		if err != nil {
			return began, fmt.Errorf("create claim: %w", err)
		}
	}
	_, err := s.client.CoreV1().Pods(s.namespace).Create(ctx, s.plan.pod(s.cluster, name), metav1.CreateOptions{})
	if err != nil {
		return began, fmt.Errorf("create Pod: %w", err)
	}
	return began, nil
}

// remove deletes a Pod and returns when that was asked for.
func (s *scene) remove(ctx context.Context, name string) (time.Time, error) {
	began := time.Now()
	if err := s.client.CoreV1().Pods(s.namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return began, fmt.Errorf("delete Pod: %w", err)
	}
	return began, nil
}

// results are the times of a sample.
type results struct {
	ready, gone       []float64 // ms, of each Pod
	allReady, allGone time.Duration
}

func run(ctx context.Context, sample *harness.Sample, which rig.Kubelet, p plan) error {
	s, err := open(ctx, which, p)
	if err != nil {
		return err
	}
	err = s.measure(ctx, sample)
	return errors.Join(err, s.close())
}

func (s *scene) measure(ctx context.Context, sample *harness.Sample) error {
	// The first Pod of a kubelet finds nothing warm; it is not counted.
	if err := s.one(ctx, "warm", &results{}); err != nil {
		return err
	}
	pids := []int{s.node.PID, s.cluster.RuntimePID}
	before, err := usages(pids)
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
	after, err := usages(pids)
	if err != nil {
		return err
	}
	report(sample, s.plan, &r)
	pods := float64(s.plan.count)
	sample.Set("CPU of the kubelet a Pod", harness.Milliseconds(after[0].CPU-before[0].CPU)/pods)
	sample.Set("CPU of containerd a Pod", harness.Milliseconds(after[1].CPU-before[1].CPU)/pods)
	return nil
}

// one makes a Pod, waits until it is ready, deletes it and waits until it is gone.
func (s *scene) one(ctx context.Context, name string, r *results) error {
	began, err := s.create(ctx, name)
	if err != nil {
		return err
	}
	ready, err := s.watch.until(ctx, name, isReady)
	if err != nil {
		return err
	}
	if err := pause(ctx, settleTime); err != nil {
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
	return pause(ctx, settleTime) // what a kubelet does after the object is gone is no part of the next Pod's start
}

// all makes all Pods at once, and when all are ready deletes all at once.
func (s *scene) all(ctx context.Context, r *results) error {
	began := time.Now()
	var err error
	if r.ready, err = s.each(ctx, s.create, isReady); err != nil {
		return err
	}
	r.allReady = time.Since(began)
	if err := pause(ctx, settleTime); err != nil {
		return err
	}
	began = time.Now()
	if r.gone, err = s.each(ctx, s.remove, isGone); err != nil {
		return err
	}
	r.allGone = time.Since(began)
	return nil
}

// each does something to all Pods and waits for what follows; it returns how long that took for each.
func (s *scene) each(
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

// report gives the times to the sample.
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

func usages(pids []int) ([]rig.Usage, error) {
	all := make([]rig.Usage, len(pids))
	for i, pid := range pids {
		usage, err := rig.UsageOf(pid)
		if err != nil {
			return nil, err
		}
		all[i] = usage
	}
	return all, nil
}
