package podworker

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/prober"
	"github.com/berth-dev/berth/kubelet/status"
	"github.com/berth-dev/berth/volume"
)

// Keys of ops. Those of one container end in its name.
const (
	opVolumes   = "volumes"
	opSandbox   = "sandbox"
	opRestart   = "restart all"
	opGC        = "collect"
	opImage     = "image "
	opContainer = "container "
)

// sync decides what the Pod needs now and begins it.
func (w *worker) sync(ctx context.Context) {
	w.allocate()
	actions := kuberuntime.ComputeActions(w.pod, w.runtime, kuberuntime.Inputs{
		Now:      w.m.deps.Clock.Now(),
		Backoff:  w.m.backoff,
		Startup:  w.startupResult,
		Liveness: w.livenessResult,
		Resources: func(c *corev1.Container) *runtimeapi.LinuxContainerResources {
			return w.m.deps.Builder.Resources(w.pod, c)
		},
		LastAttempt: func(name string) (uint32, bool) { return w.m.deps.Builder.LastAttempt(w.pod, name) },
	})
	if !actions.NextSync.IsZero() {
		w.wakeAt(actions.NextSync)
	}
	if actions.Finished {
		w.startTermination()
		w.terminate(ctx)
		return
	}
	w.updateBackoff(actions.Waiting)
	w.mountVolumes(ctx)
	w.pullImages(ctx, actions)
	switch {
	case actions.RestartAll:
		w.restartAll(ctx, actions)
	case actions.CreateSandbox:
		w.createSandbox(ctx, actions)
	default:
		w.actuate(ctx, actions)
		for _, kill := range actions.Kill {
			w.startKill(ctx, kill)
		}
		w.startContainers(ctx, actions)
		w.gcContainers(ctx, actions)
	}
}

// mountVolumes begins to set the Pod's volumes up.
func (w *worker) mountVolumes(ctx context.Context) {
	if w.volumesMounted || w.ops[opVolumes] != nil || w.backingOff(opVolumes) {
		return
	}
	pod := w.pod
	w.startOp(ctx, opVolumes, op{}, func(ctx context.Context) func() {
		err := w.m.deps.Volumes.Mount(ctx, pod)
		return func() {
			switch {
			case err == nil:
				w.retries.done(opVolumes)
				w.volumesMounted = true
			case volume.IsUnsupported(err) && w.failure == nil:
				// What a claim turned out to be cannot be had here: no retry will help.
				w.failure = &status.Failure{Reason: "UnsupportedField", Message: err.Error()}
			case volume.IsAttachLimitExceeded(err) && w.failure == nil:
				// The scheduler did not know: whoever owns the Pod makes another, for which there may be room elsewhere.
				w.failure = &status.Failure{Reason: "VolumeAttachmentLimitExceeded", Message: err.Error()}
			default:
				w.failStep(ctx, opVolumes, err)
			}
		}
	})
}

// failStep notes that a step failed, unless it was given up because the Pod ends or the node agent does.
func (w *worker) failStep(ctx context.Context, step string, err error) {
	if ctx.Err() == nil {
		w.recordFailure(step, err)
	}
}

// updateBackoff notes the containers that wait out their backoff, with one event for each wait.
func (w *worker) updateBackoff(waiting []kuberuntime.Waiting) {
	const reason = "CrashLoopBackOff"
	for name, why := range w.waiting {
		if why.Reason == reason {
			delete(w.waiting, name)
		}
	}
	for _, crash := range waiting {
		if w.ops[opContainer+crash.Container] != nil {
			continue // it is being started, and its next wait was noted with that
		}
		w.waiting[crash.Container] = status.Waiting{Reason: reason, Message: crash.Message}
		if !w.reportedBackoffs[crash.Container].Equal(crash.Until) {
			w.reportedBackoffs[crash.Container] = crash.Until
			w.eventWarning(crash.Container, "BackOff", "Back-off restarting failed container %s in pod %s_%s(%s)",
				crash.Container, w.pod.Name, w.pod.Namespace, w.uid)
		}
	}
}

// restartAll takes all containers down so that they start over.
func (w *worker) restartAll(ctx context.Context, actions kuberuntime.Actions) {
	if len(w.ops) > 0 || w.backingOff(opRestart) {
		return
	}
	pod, ip := w.pod, firstIP(w.podIPs())
	w.startOp(ctx, opRestart, op{}, func(ctx context.Context) func() {
		err := w.removeAll(ctx, pod, actions, ip)
		return func() {
			w.invalidate()
			if err != nil {
				w.failStep(ctx, opRestart, err)
				return
			}
			w.retries.done(opRestart)
			clear(w.images)
		}
	})
}

// removeAll stops and removes what is in the way of a restart of all containers. It stops at the first error: the
// instances whose exit asks for the restart stand last, and without them nobody would know that it is not done.
func (w *worker) removeAll(ctx context.Context, pod *corev1.Pod, actions kuberuntime.Actions, ip string) error {
	for _, kill := range actions.Kill {
		if err := w.killContainer(ctx, pod, kill, ip); err != nil {
			return err
		}
	}
	for _, c := range actions.Remove {
		if err := w.removeContainer(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// startKill begins to stop one container while its Pod goes on.
func (w *worker) startKill(ctx context.Context, kill kuberuntime.Kill) {
	key := opContainer + kill.Status.Name
	if w.ops[key] != nil || w.backingOff(key) {
		return
	}
	if f, ok := w.m.deps.Probes.Failed(kill.Status.ID); ok && kill.GracePeriod == nil {
		kill.GracePeriod = f.GraceSeconds
	}
	pod, ip := w.pod, firstIP(w.podIPs())
	w.startOp(ctx, key, op{}, func(ctx context.Context) func() {
		err := w.killContainer(ctx, pod, kill, ip)
		return func() {
			w.invalidate()
			if err != nil {
				w.failStep(ctx, key, err)
				return
			}
			w.retries.done(key)
		}
	})
}

// gcContainers removes instances and sandboxes that nobody will ask for any more: of each container the two newest
// instances stay, for its state and its last one.
func (w *worker) gcContainers(ctx context.Context, actions kuberuntime.Actions) {
	if len(w.ops) > 0 || len(actions.Start) > 0 || w.backingOff(opGC) {
		return
	}
	var dead []*container.ContainerStatus
	count := map[string]int{}
	inUse := map[string]bool{}
	for _, c := range w.runtime.Containers {
		count[c.Name]++
		if count[c.Name] > 2 && c.State != container.StateRunning {
			dead = append(dead, c)
			continue
		}
		inUse[c.SandboxID] = true
	}
	dead = append(dead, actions.Remove...)
	var boxes []string
	for _, box := range w.runtime.Sandboxes[min(1, len(w.runtime.Sandboxes)):] {
		if !inUse[box.Id] {
			boxes = append(boxes, box.Id)
		}
	}
	if len(dead)+len(boxes) == 0 {
		return
	}
	w.startOp(ctx, opGC, op{}, func(ctx context.Context) func() {
		var errs []error
		for _, c := range dead {
			errs = append(errs, w.removeContainer(ctx, c))
		}
		for _, id := range boxes {
			errs = append(errs, w.removeSandbox(ctx, id))
		}
		err := errors.Join(errs...)
		return func() {
			w.dirty = true
			if err != nil {
				w.failStep(ctx, opGC, err)
				return
			}
			w.retries.done(opGC)
		}
	})
}

// startupResult and liveness are the verdicts of probes in the words of the decision.
func (w *worker) startupResult(id string) kuberuntime.ProbeResult {
	if f, ok := w.m.deps.Probes.Failed(id); ok && f.Type == prober.Startup {
		return kuberuntime.ProbeFailure
	}
	if started, _ := w.m.deps.Probes.Started(id); started {
		return kuberuntime.ProbeSuccess
	}
	return kuberuntime.ProbeUnknown
}

func (w *worker) livenessResult(id string) kuberuntime.ProbeResult {
	if f, ok := w.m.deps.Probes.Failed(id); ok && f.Type == prober.Liveness {
		return kuberuntime.ProbeFailure
	}
	return kuberuntime.ProbeUnknown
}
