package podworker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/qos"
)

// StopPods stops the given Pods of the runtime as a Pod of the API server is stopped when it is deleted: with preStop
// hooks, sidecars after the containers that they serve, and each Pod's own grace period, but at most the given ones: that of
// ordinary Pods, and that of critical ones, which others may need and which are stopped when all others have ended. No
// status is written and nothing is removed, so that the next Start runs the same Pods again. It is called when Start has
// returned; Pods without a worker are stopped as far as the runtime knows them.
func (m *Manager) StopPods(ctx context.Context, uids []types.UID, ordinary, critical time.Duration) error {
	var others, last []*worker
	for _, uid := range uids {
		w := m.worker(uid)
		if w == nil {
			w = newWorker(m, nil)
			w.uid = uid
		}
		if w.pod != nil && qos.IsCritical(w.pod) {
			last = append(last, w)
		} else {
			others = append(others, w)
		}
	}
	return errors.Join(shutdownAll(ctx, others, ordinary), shutdownAll(ctx, last, critical))
}

// shutdownAll stops the Pods of workers at the same time.
func shutdownAll(ctx context.Context, workers []*worker, limit time.Duration) error {
	errs := make([]error, len(workers))
	var group sync.WaitGroup
	for i, w := range workers {
		group.Go(func() {
			errs[i] = contain.Do("podworker.shutdown", string(w.uid), func() error { return w.shutdown(ctx, limit) })
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// shutdown stops the worker's Pod. It belongs to the caller, since the worker's own goroutine has returned.
func (w *worker) shutdown(ctx context.Context, limit time.Duration) error {
	running, err := w.m.deps.Reader.Read(ctx, w.uid)
	if err != nil {
		return fmt.Errorf("stop Pod %s: %w", w.uid, err)
	}
	pod := w.pod
	if pod == nil {
		pod = podFromRuntime(w.uid, running)
		w.pod = pod
	}
	grace := kuberuntime.PodGracePeriod(pod, w.graceOverride)
	if limit := int64(limit / time.Second); grace > limit {
		grace = max(limit, kuberuntime.MinGracePeriod)
	}
	plan := kuberuntime.TerminationPlan(pod, running.Running(), grace)
	err = w.stopContainers(ctx, pod, plan, grace, firstIP(w.m.podIPs(pod, running)))
	if err = errors.Join(err, w.stopSandboxes(ctx, pod, running)); err != nil {
		return fmt.Errorf("stop Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
