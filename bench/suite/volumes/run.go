package volumes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/testbed"
	"github.com/berth-dev/berth/csidriver"
)

type (
	watcher = watch.Interface
	event   = watch.Event
)

func runAdded(ctx context.Context, sample *harness.Sample, which testbed.Kubelet, p plan) error {
	s, err := newFixture(ctx, which, p)
	if err != nil {
		return err
	}
	return errors.Join(s.measureAdded(ctx, sample), s.Close())
}

// measureAdded lets Pods with volumes and Pods without take turns.
func (s *fixture) measureAdded(ctx context.Context, sample *harness.Sample) error {
	var with, without, calls []float64
	for i := -1; i < each; i++ { // the first finds nothing warm and is not counted
		plain, _, err := s.one(ctx, fmt.Sprint("plain-", i+1), none)
		if err != nil {
			return err
		}
		full, driver, err := s.one(ctx, fmt.Sprint("full-", i+1), s.plan.with)
		if err != nil {
			return err
		}
		if i >= 0 {
			without, with, calls = append(without, plain), append(with, full), append(calls, driver)
		}
	}
	sample.Keep("with volumes", with)
	sample.Keep("without", without)
	half := func(values []float64) float64 { return harness.Quantile(values, 0.5) }
	sample.Set("with volumes p50", half(with))
	sample.Set("without p50", half(without))
	sample.Set(withAdded, half(with)-half(without))
	if s.meter == nil {
		return nil
	}
	beyond := make([]float64, len(with))
	for i := range with {
		beyond[i] = with[i] - half(without) - calls[i]
	}
	sample.Set("the driver's calls p50", half(calls))
	sample.Set("beyond the driver p50", half(beyond))
	return nil
}

// one makes a Pod, waits until it is ready, and deletes it and its claim. It returns how many milliseconds the start
// took, and how many of them the driver.
func (s *fixture) one(ctx context.Context, name string, volumes kind) (took, driver float64, err error) {
	if volumes == disk {
		if err := s.bind(ctx, name); err != nil {
			return 0, 0, err
		}
	}
	if s.meter != nil {
		s.meter.reset()
	}
	began := time.Now()
	if volumes == stateful || volumes == diskAtOnce {
		wanted := claim(name, localClass().Name, "1Mi")
		if volumes == diskAtOnce {
			wanted = claim(name, csidriver.ClassName, "16Mi")
		}
		_, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Create(ctx, wanted, metav1.CreateOptions{})
		if err != nil {
			return 0, 0, fmt.Errorf("create claim: %w", err)
		}
	}
	ready, err := s.start(ctx, name, volumes)
	if err != nil {
		return 0, 0, err
	}
	if s.meter != nil {
		driver = harness.Milliseconds(s.meter.total())
	}
	if err := harness.Pause(ctx, deleteDelay); err != nil {
		return 0, 0, err
	}
	if err := s.end(ctx, name); err != nil {
		return 0, 0, err
	}
	if volumes == stateful || volumes == disk || volumes == diskAtOnce {
		if err := s.deleteClaim(ctx, name); err != nil {
			return 0, 0, err
		}
	}
	// What a node does after a Pod is gone is not to slow down the next one's start.
	return harness.Milliseconds(ready.Sub(began)), driver, harness.Pause(ctx, nextDelay)
}

// bind makes a claim and waits until it is bound.
func (s *fixture) bind(ctx context.Context, name string) error {
	claims := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace)
	changes, err := claims.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return fmt.Errorf("watch claim: %w", err)
	}
	if _, err := claims.Create(ctx, claim(name, diskClass().Name, "16Mi"), metav1.CreateOptions{}); err != nil {
		changes.Stop()
		return fmt.Errorf("create claim: %w", err)
	}
	_, err = until(ctx, changes, func(e event) bool {
		object, is := e.Object.(*corev1.PersistentVolumeClaim)
		return is && object.Status.Phase == corev1.ClaimBound
	})
	if err != nil {
		return fmt.Errorf("wait for claim %q to be bound: %w", name, err)
	}
	return nil
}

// deleteClaim deletes a claim and waits until its volume is gone.
func (s *fixture) deleteClaim(ctx context.Context, name string) error {
	claim, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get claim %q: %w", name, err)
	}
	volume := claim.Spec.VolumeName
	changes, err := s.Client.CoreV1().PersistentVolumes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + volume})
	if err != nil {
		return fmt.Errorf("watch volume %q: %w", volume, err)
	}
	if err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		changes.Stop()
		return fmt.Errorf("delete claim %q: %w", name, err)
	}
	if _, err := until(ctx, changes, func(e event) bool { return e.Type == watch.Deleted }); err != nil {
		return fmt.Errorf("wait for the end of volume %q: %w", volume, err)
	}
	return nil
}

// start creates a Pod and returns when it was ready.
func (s *fixture) start(ctx context.Context, name string, volumes kind) (time.Time, error) {
	pods := s.Client.CoreV1().Pods(s.Namespace)
	changes, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return time.Time{}, fmt.Errorf("watch Pod: %w", err)
	}
	if _, err := pods.Create(ctx, s.plan.pod(s.Cluster, name, volumes), metav1.CreateOptions{}); err != nil {
		changes.Stop()
		return time.Time{}, fmt.Errorf("create Pod: %w", err)
	}
	at, err := until(ctx, changes, func(e event) bool {
		pod, is := e.Object.(*corev1.Pod)
		return is && ready(pod)
	})
	if err != nil {
		return at, fmt.Errorf("wait for Pod %q: %w", name, err)
	}
	return at, nil
}

func ready(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// end deletes a Pod and returns when it is gone.
func (s *fixture) end(ctx context.Context, name string) error {
	pods := s.Client.CoreV1().Pods(s.Namespace)
	changes, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return fmt.Errorf("watch Pod: %w", err)
	}
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		changes.Stop()
		return fmt.Errorf("delete Pod: %w", err)
	}
	if _, err := until(ctx, changes, func(e event) bool { return e.Type == watch.Deleted }); err != nil {
		return fmt.Errorf("wait for the end of Pod %q: %w", name, err)
	}
	return nil
}

// runIdle measures a node with a thousand volumes and nothing to do.
func runIdle(ctx context.Context, sample *harness.Sample, which testbed.Kubelet) error {
	s, err := newFixture(ctx, which, plan{with: many})
	if err != nil {
		return err
	}
	return errors.Join(s.idle(ctx, sample), s.Close())
}

func (s *fixture) idle(ctx context.Context, sample *harness.Sample) error {
	const creators = 8
	group, started := errgroup.WithContext(ctx)
	group.SetLimit(creators)
	for i := range idlePods {
		group.Go(func() error {
			_, err := s.start(started, fmt.Sprint("idle-", i), many)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := harness.Pause(ctx, restTime); err != nil {
		return err
	}
	before, err := testbed.UsageOf(s.Node.PID)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := harness.Pause(ctx, idleTime); err != nil {
		return err
	}
	after, err := testbed.UsageOf(s.Node.PID)
	if err != nil {
		return err
	}
	sample.Set("CPU of the kubelet", (after.CPU-before.CPU).Seconds()/time.Since(began).Minutes())
	group, ended := errgroup.WithContext(ctx)
	group.SetLimit(creators)
	for i := range idlePods {
		group.Go(func() error { return s.end(ended, fmt.Sprint("idle-", i)) })
	}
	return group.Wait()
}
