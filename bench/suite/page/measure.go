package page

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/testbed"
)

const (
	namespace = "default"
	creators  = 16 // Pods that are created at the same time
	heldBy    = "example.com/first"
)

func podName(i int) string { return fmt.Sprintf("held-%04d", i) }

// mark is the scheduling gate that the row of a Pod names once its first gate is removed.
func mark(i int) string { return fmt.Sprintf("example.com/mark-%04d", i) }

// createPods creates the Pods, which wait for their scheduling gates.
func (c *cluster) createPods(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(creators)
	for i := range podCount {
		group.Go(func() error {
			_, err := c.client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: podName(i)},
				Spec: corev1.PodSpec{
					SchedulingGates: []corev1.PodSchedulingGate{{Name: heldBy}, {Name: mark(i)}},
					Containers:      []corev1.Container{{Name: "main", Image: "example.com/none"}},
				},
			}, metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("create the Pods: %w", err)
	}
	return nil
}

// measureCost measures what a page costs.
func (c *cluster) measureCost(ctx context.Context, s *harness.Sample, path string) error {
	closed, err := c.load(ctx)
	if err != nil {
		return err
	}
	took, err := c.browser.get(ctx, path)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, ended := c.browser.open(ctx, path)
	for opened := time.After(openTime); ; {
		select {
		case _, ok := <-events:
			if !ok {
				return <-ended
			}
			continue
		case <-opened:
		}
		break
	}
	go func() { // the page shows whatever comes
		for range events { //nolint:revive // see above
		}
	}()
	open, err := c.load(ctx)
	if err != nil {
		return err
	}
	s.Set(closedMetric, closed)
	s.Set(costMetric, open-closed)
	s.Set(openedMetric, milliseconds(took))
	return nil
}

// load is the CPU that all processes of the cluster use together, in % of a core.
func (c *cluster) load(ctx context.Context) (float64, error) {
	children, err := testbed.Children(c.process.PID)
	if err != nil {
		return 0, err
	}
	pids := []int{c.process.PID}
	for _, pid := range children {
		pids = append(pids, pid)
	}
	idling, err := testbed.MeasureIdle(ctx, pids, idleTime)
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, process := range idling {
		sum += process.CPU * 100
	}
	return sum, nil
}

// measureChanges measures how soon the list shows a change.
func (c *cluster) measureChanges(ctx context.Context, s *harness.Sample) error {
	children, err := testbed.Children(c.process.PID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, ended := c.browser.open(ctx, "/")
	if _, ok := <-events; !ok { // the whole list
		return <-ended
	}
	before, err := testbed.UsageOf(children["berth"])
	if err != nil {
		return err
	}
	var delays []float64
	for i := range changes {
		if err := harness.Pause(ctx, pace); err != nil {
			return err
		}
		began := time.Now()
		patched := make(chan error, 1)
		go func() { patched <- c.removeGate(ctx, i) }()
		shown, err := waitFor(ctx, events, ended, mark(i))
		if err := errors.Join(err, <-patched); err != nil {
			return err
		}
		delays = append(delays, milliseconds(shown.Sub(began)))
	}
	after, err := testbed.UsageOf(children["berth"])
	if err != nil {
		return err
	}
	s.Set(medianMetric, harness.Quantile(delays, 0.5))
	s.Set(tailMetric, harness.Quantile(delays, 0.99))
	s.Set(perChange, milliseconds(after.CPU-before.CPU)/changes)
	s.Keep(medianMetric, delays)
	return nil
}

// removeGate removes the first gate of a Pod: its row names the second one then.
func (c *cluster) removeGate(ctx context.Context, i int) error {
	const patch = `[{"op": "remove", "path": "/spec/schedulingGates/0"}]`
	_, err := c.client.CoreV1().Pods(namespace).Patch(ctx, podName(i), types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("change Pod %s: %w", podName(i), err)
	}
	return nil
}

// changeTimeout bounds the wait for one change.
const changeTimeout = time.Minute

// waitFor returns when an event has the text.
func waitFor(ctx context.Context, events <-chan event, ended <-chan error, text string) (time.Time, error) {
	timeout := time.After(changeTimeout)
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return time.Time{}, <-ended
			}
			if bytes.Contains(e.data, []byte(text)) {
				return e.at, nil
			}
		case <-timeout:
			return time.Time{}, fmt.Errorf("the page does not show %s", text)
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		}
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
