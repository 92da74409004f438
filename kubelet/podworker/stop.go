package podworker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/lifecycle"
)

// stopTimeoutMargin is what the runtime may take beyond a container's grace before the stop counts as failed.
const stopTimeoutMargin = 2 * time.Minute

// killPod stops all containers of the Pod within the grace, in seconds, and then its sandboxes. What the runtime tells
// of that is not read until noted is called, whatever is returned with it.
func (w *worker) killPod(ctx context.Context, pod *corev1.Pod, held *container.PodStatus, grace int64,
) (noted func(), err error) {
	plan := kuberuntime.TerminationPlan(pod, held.Running(), grace)
	if err := w.stopContainers(ctx, pod, plan, grace, firstIP(held.IPs)); err != nil {
		return func() {}, err
	}
	// How the containers ended is read at once; that the sandboxes end is no news.
	w.busy.Add(1)
	noted = func() { w.busy.Add(-1) }
	w.post(func() {
		if len(w.runtime.Running()) > 0 {
			w.invalidate()
		}
	})
	return noted, w.stopSandboxes(ctx, pod, held)
}

// stopSandboxes stops the sandboxes of the Pod side by side.
func (w *worker) stopSandboxes(ctx context.Context, pod *corev1.Pod, held *container.PodStatus) error {
	errs := make([]error, len(held.Sandboxes))
	var group sync.WaitGroup
	for i, box := range held.Sandboxes {
		group.Go(func() {
			_, err := w.m.deps.Runtime.StopPodSandbox(uncancelled(ctx), &runtimeapi.StopPodSandboxRequest{PodSandboxId: box.Id})
			if ignoreNotFound(err) != nil {
				errs[i] = fmt.Errorf("stop sandbox %s of pod %s/%s: %w", box.Id, pod.Namespace, pod.Name, err)
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// stopContainers stops the containers of a plan side by side.
func (w *worker) stopContainers(ctx context.Context, pod *corev1.Pod, plan []kuberuntime.Stop, grace int64, ip string) error {
	deadline := w.m.deps.Clock.Now().Add(time.Duration(grace) * time.Second)
	errs := make([]error, len(plan))
	done := make([]chan struct{}, len(plan))
	for i := range plan {
		done[i] = make(chan struct{})
	}
	var group sync.WaitGroup
	for i, stop := range plan {
		group.Go(func() {
			defer close(done[i])
			w.eventNormal(stop.Status.Name, "Killing", "Stopping container %s", stop.Status.Name)
			w.runPreStop(ctx, pod, stop, deadline, ip)
			for _, before := range stop.After {
				w.waitUntil(ctx, done[before], deadline)
			}
			left := int64(deadline.Sub(w.m.deps.Clock.Now()).Round(time.Second) / time.Second)
			errs[i] = w.stopContainer(ctx, stop.Status, max(left, kuberuntime.MinGracePeriod))
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// waitUntil waits for the channel to be closed, at most until the deadline.
func (w *worker) waitUntil(ctx context.Context, done <-chan struct{}, deadline time.Time) {
	timer := w.m.deps.Clock.NewTimer(deadline.Sub(w.m.deps.Clock.Now()))
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C():
	case <-ctx.Done():
	}
}

// runPreStop runs a container's runPreStop hook, once, within the deadline. A hook that fails stops nothing.
func (w *worker) runPreStop(ctx context.Context, pod *corev1.Pod, stop kuberuntime.Stop, deadline time.Time, ip string) {
	hook, c := stop.Status.PreStop, stop.Container
	if c != nil {
		hook = nil
		if c.Lifecycle != nil {
			hook = c.Lifecycle.PreStop
		}
	}
	if hook == nil || stop.Status.State != container.StateRunning || !w.preStopDone.add(stop.Status.ID) {
		return
	}
	if c == nil {
		c = &corev1.Container{Name: stop.Status.Name, Ports: stop.Status.Ports}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- w.m.deps.Hooks.Run(ctx, lifecycle.Target{
			Pod: pod, Container: c, ContainerID: stop.Status.ID, PodIP: ip,
		}, hook)
	}()
	timer := w.m.deps.Clock.NewTimer(deadline.Sub(w.m.deps.Clock.Now()))
	defer timer.Stop()
	select {
	case err := <-ended:
		if err != nil {
			w.eventWarning(c.Name, "FailedPreStopHook", "PreStopHook failed")
		}
		return
	case <-timer.C():
		w.eventWarning(c.Name, "FailedPreStopHook", "PreStopHook did not finish within the grace period")
	case <-ctx.Done():
	}
	cancel()
	<-ended
}

// killContainer stops one container while its Pod, which has the address ip, goes on.
func (w *worker) killContainer(ctx context.Context, pod *corev1.Pod, kill kuberuntime.Kill, ip string) error {
	grace := kuberuntime.KillGracePeriod(pod, kill)
	w.eventNormal(kill.Status.Name, "Killing", "%s", kill.Message)
	stop := kuberuntime.Stop{Status: kill.Status, Container: kill.Container}
	if grace <= 0 {
		return w.stopContainer(ctx, kill.Status, 0)
	}
	deadline := w.m.deps.Clock.Now().Add(time.Duration(grace) * time.Second)
	w.runPreStop(ctx, pod, stop, deadline, ip)
	left := int64(deadline.Sub(w.m.deps.Clock.Now()).Round(time.Second) / time.Second)
	return w.stopContainer(ctx, kill.Status, max(left, kuberuntime.MinGracePeriod))
}

// stopContainer asks the runtime to end a container, by force after the grace, in seconds.
func (w *worker) stopContainer(ctx context.Context, c *container.ContainerStatus, grace int64) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(grace)*time.Second+stopTimeoutMargin)
	defer cancel()
	_, err := w.m.deps.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: c.ID, Timeout: grace})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("stop container %q (%s): %w", c.Name, c.ID, err)
	}
	return nil
}

func (w *worker) removeContainer(ctx context.Context, c *container.ContainerStatus) error {
	if err := kuberuntime.RemoveUnusedLog(c); err != nil {
		return err
	}
	_, err := w.m.deps.Runtime.RemoveContainer(uncancelled(ctx), &runtimeapi.RemoveContainerRequest{ContainerId: c.ID})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("remove container %q (%s): %w", c.Name, c.ID, err)
	}
	return nil
}

func (w *worker) removeSandbox(ctx context.Context, id string) error {
	_, err := w.m.deps.Runtime.RemovePodSandbox(uncancelled(ctx), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	return nil
}

// uncancelled lets a call that has begun run to its end (which the runtime's client bounds), whatever happens to the op it
// belongs to. A runtime that is interrupted while it takes something down may leave a process behind, and one that
// is interrupted in a start leaves a container that counts as a failed one.
func uncancelled(ctx context.Context) context.Context { return context.WithoutCancel(ctx) }
