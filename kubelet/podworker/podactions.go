package podworker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/lifecycle"
)

// podActions are the actions on one Pod that operations take beside its worker: they call the runtime, run hooks and send
// events. It has none of the worker's state and is safe for concurrent use.
type podActions struct {
	deps *Deps
	// sharedPod is the worker's Pod as other goroutines may read it.
	sharedPod atomic.Pointer[corev1.Pod]
	// preStopDone are the ids of containers whose preStop hook has run.
	preStopDone *stringSet
}

// stopContainers stops the containers of a plan side by side, each after those that it waits for.
func (a *podActions) stopContainers(ctx context.Context, pod *corev1.Pod, plan []kuberuntime.Stop, grace int64, ip string) error {
	deadline := a.deps.Clock.Now().Add(time.Duration(grace) * time.Second)
	errs := make([]error, len(plan))
	done := make([]chan struct{}, len(plan))
	for i := range plan {
		done[i] = make(chan struct{})
	}
	var group sync.WaitGroup
	for i, stop := range plan {
		group.Go(contain.Guard("podworker.stopContainers", "", func() {
			defer close(done[i])
			a.eventNormal(stop.Status.Name, "Killing", "Stopping container %s", stop.Status.Name)
			endHook := func() {}
			contain.Guard("podworker.preStop", podutil.Name(pod), func() { endHook = a.runPreStop(ctx, pod, stop, deadline, ip) })()
			defer func() { endHook() }()
			for _, before := range stop.After {
				a.waitUntil(ctx, done[before], deadline)
			}
			left := int64(deadline.Sub(a.deps.Clock.Now()).Round(time.Second) / time.Second)
			errs[i] = contain.Do("podworker.stopContainer", podutil.Name(pod), func() error {
				return a.stopContainer(ctx, stop.Status, max(left, kuberuntime.MinGracePeriod))
			})
		}))
	}
	group.Wait()
	return errors.Join(errs...)
}

// waitUntil waits for the channel to be closed, at most until the deadline.
func (a *podActions) waitUntil(ctx context.Context, done <-chan struct{}, deadline time.Time) {
	timer := a.deps.Clock.NewTimer(deadline.Sub(a.deps.Clock.Now()))
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C():
	case <-ctx.Done():
	}
}

// runPreStop runs a container's preStop hook once and waits for its end, until the deadline at most. The container is stopped even if
// its hook fails. A hook that takes longer goes on until the container has stopped: the caller then calls end. One that is cut off with ctx
// runs again when another stop replaces this one.
func (a *podActions) runPreStop(ctx context.Context, pod *corev1.Pod, stop kuberuntime.Stop, deadline time.Time, ip string) (end func()) {
	hook, c := stop.Status.PreStop, stop.Container
	if c != nil {
		hook = nil
		if c.Lifecycle != nil {
			hook = c.Lifecycle.PreStop
		}
	}
	if hook == nil || stop.Status.State != container.StateRunning || !a.preStopDone.add(stop.Status.ID) {
		return func() {}
	}
	if c == nil {
		c = &corev1.Container{Name: stop.Status.Name, Ports: stop.Status.Ports}
	}
	ctx, cancel := context.WithCancel(ctx)
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = contain.Do("podworker.runPreStop", "", func() error {
			return a.deps.Hooks.Run(ctx, lifecycle.Target{
				Pod: pod, Container: c, ContainerID: stop.Status.ID, PodIP: ip,
			}, hook)
		})
	}()
	timer := a.deps.Clock.NewTimer(deadline.Sub(a.deps.Clock.Now()))
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C():
		a.eventWarning(c.Name, "FailedPreStopHook", "PreStopHook did not finish within the grace period")
		return func() { cancel(); <-ended }
	case <-ctx.Done():
		<-ended
	}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		a.preStopDone.remove(stop.Status.ID)
	default:
		a.eventWarning(c.Name, "FailedPreStopHook", "PreStopHook failed")
	}
	return cancel
}

// killContainer stops one container while its Pod, which has the address ip, keeps running.
func (a *podActions) killContainer(ctx context.Context, pod *corev1.Pod, kill kuberuntime.Kill, ip string) error {
	grace := kuberuntime.KillGracePeriod(pod, kill)
	a.eventNormal(kill.Status.Name, "Killing", "%s", kill.Message)
	stop := kuberuntime.Stop{Status: kill.Status, Container: kill.Container}
	if grace <= 0 { // there is no time for a hook
		return a.stopContainer(ctx, kill.Status, kuberuntime.MinGracePeriod)
	}
	deadline := a.deps.Clock.Now().Add(time.Duration(grace) * time.Second)
	endHook := a.runPreStop(ctx, pod, stop, deadline, ip)
	defer endHook()
	left := int64(deadline.Sub(a.deps.Clock.Now()).Round(time.Second) / time.Second)
	return a.stopContainer(ctx, kill.Status, max(left, kuberuntime.MinGracePeriod))
}

// stopContainer stops a container, by force after the grace period, in seconds.
func (a *podActions) stopContainer(ctx context.Context, c *container.ContainerStatus, grace int64) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(grace)*time.Second+stopTimeoutMargin)
	defer cancel()
	_, err := a.deps.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: c.ID, Timeout: grace})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("stop container %q (%s): %w", c.Name, c.ID, err)
	}
	return nil
}

// stopSandboxes stops the sandboxes of the Pod side by side.
func (a *podActions) stopSandboxes(ctx context.Context, pod *corev1.Pod, held *container.PodStatus) error {
	errs := make([]error, len(held.Sandboxes))
	var group sync.WaitGroup
	for i, box := range held.Sandboxes {
		group.Go(contain.Guard("podworker.stopSandboxes", "", func() {
			_, err := a.deps.Runtime.StopPodSandbox(uncancelled(ctx), &runtimeapi.StopPodSandboxRequest{PodSandboxId: box.Id})
			if ignoreNotFound(err) != nil {
				errs[i] = fmt.Errorf("stop sandbox %s of pod %s/%s: %w", box.Id, pod.Namespace, pod.Name, err)
			}
		}))
	}
	group.Wait()
	return errors.Join(errs...)
}

func (a *podActions) removeContainer(ctx context.Context, c *container.ContainerStatus) error {
	if err := kuberuntime.RemoveUnusedLog(c); err != nil {
		return err
	}
	_, err := a.deps.Runtime.RemoveContainer(uncancelled(ctx), &runtimeapi.RemoveContainerRequest{ContainerId: c.ID})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("remove container %q (%s): %w", c.Name, c.ID, err)
	}
	return errors.Join(a.removeCgroup(ctx, c.ID), a.deps.Builder.RemoveTerminationLog(c))
}

// removeCgroup removes what the runtime may have left of the cgroup of a container or sandbox. That of a Pod that is gone is removed
// with the Pod's.
func (a *podActions) removeCgroup(ctx context.Context, id string) error {
	pod := a.sharedPod.Load()
	if pod == nil || pod.Name == "" {
		return nil
	}
	return a.deps.Builder.RemoveCgroup(uncancelled(ctx), pod, id)
}

func (a *podActions) removeSandbox(ctx context.Context, id string) error {
	_, err := a.deps.Runtime.RemovePodSandbox(uncancelled(ctx), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	return a.removeCgroup(ctx, id)
}

// eventNormal and eventWarning send an event about the Pod or, with a name, about one of its containers.
func (a *podActions) eventNormal(name, reason, format string, args ...any) {
	a.event(name, corev1.EventTypeNormal, reason, format, args...)
}

func (a *podActions) eventWarning(name, reason, format string, args ...any) {
	a.event(name, corev1.EventTypeWarning, reason, format, args...)
}

func (a *podActions) event(name, kind, reason, format string, args ...any) {
	pod := a.sharedPod.Load()
	if pod == nil || pod.Name == "" {
		return
	}
	a.deps.Recorder.Event(fieldRef(pod, name), kind, reason, fmt.Sprintf(format, args...))
}

// reportStartError sends the event of a failed start, unless the start was cancelled.
func (a *podActions) reportStartError(ctx context.Context, name string, err error) {
	var f *startError
	if ctx.Err() == nil && errors.As(err, &f) {
		a.eventWarning(name, "Failed", "Error: %s", f.text)
	}
}
