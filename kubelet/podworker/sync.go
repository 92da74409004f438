package podworker

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/prober"
	"github.com/berth-dev/berth/kubelet/status"
	"github.com/berth-dev/berth/volume"
)

// Keys of ops. Those of one container end with its name.
const (
	opVolumes   = "volumes"
	opSandbox   = "sandbox"
	opRestart   = "restart all"
	opGC        = "collect"
	opImage     = "image "
	opContainer = "container "
)

// sync computes what the Pod needs now and starts those operations.
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
		ActuatedMemory: func(name string) (resource.Quantity, bool) {
			return w.m.deps.Allocations.ActuatedMemory(w.uid, name)
		},
		Restarting:  w.isRestarting,
		LastAttempt: w.lastAttempt,
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
	w.pinContainers(ctx)
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

// mountVolumes starts to mount the Pod's volumes.
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
				// The node cannot mount such a claim: a retry does not help.
				w.failure = &status.Failure{Reason: "UnsupportedField", Message: err.Error()}
			case volume.IsAttachLimitExceeded(err) && w.failure == nil:
				// The scheduler did not know of the limit. The Pod's controller creates another Pod, which may fit elsewhere.
				w.failure = &status.Failure{Reason: "VolumeAttachmentLimitExceeded", Message: err.Error()}
			default:
				w.failStep(ctx, opVolumes, err)
			}
		}
	})
}

// failStep records that a step failed, unless it was cancelled because the Pod or the kubelet stops.
func (w *worker) failStep(ctx context.Context, step string, err error) {
	if ctx.Err() == nil {
		w.recordFailure(step, err)
	}
}

// updateBackoff records the containers that wait for the end of their backoff, with one event for each wait.
func (w *worker) updateBackoff(waiting []kuberuntime.Waiting) {
	const reason = "CrashLoopBackOff"
	for name, why := range w.waiting {
		if why.Reason == reason {
			delete(w.waiting, name)
		}
	}
	for _, crash := range waiting {
		if w.ops[opContainer+crash.Container] != nil {
			continue // it is being started
		}
		w.waiting[crash.Container] = status.Waiting{Reason: reason, Message: crash.Message}
		if !w.reportedBackoffs[crash.Container].Equal(crash.Until) {
			w.reportedBackoffs[crash.Container] = crash.Until
			w.eventWarning(crash.Container, "BackOff", "Back-off restarting failed container %s in pod %s_%s(%s)",
				crash.Container, w.pod.Name, w.pod.Namespace, w.uid)
		}
	}
}

// restartAll starts to stop and remove all containers so that the Pod starts over.
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

// removeAll stops and removes the containers that a restart of all containers replaces. It stops at the first error: the
// containers whose exit wants the restart come last, and without them the next sync would not know that it is not done.
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

// lastAttempt returns the highest restart count of a container that the runtime may not know.
func (w *worker) lastAttempt(name string) (uint32, bool) {
	inLogs, logged := w.m.deps.Builder.LastAttempt(w.pod, name)
	earlier, known := w.attempts[name]
	return max(inLogs, earlier), logged || known
}

// startKill starts to stop one container while its Pod keeps running.
func (w *worker) startKill(ctx context.Context, kill kuberuntime.Kill) {
	key := opContainer + kill.Status.Name
	if w.ops[key] != nil || w.backingOff(key) {
		return
	}
	if f, ok := w.m.deps.Probes.Failed(kill.Status.ID); ok && kill.GracePeriod == nil {
		kill.GracePeriod = f.GraceSeconds
	}
	if kill.Restart {
		w.restarting[kill.Status.ID] = true
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

// isRestarting reports whether a container was stopped to be started again.
func (w *worker) isRestarting(id string) bool { return w.restarting[id] }

// gcContainers removes containers and sandboxes that are not needed any more. The two newest instances of each container
// stay, for its state and its last state.
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
		ctx, span := w.startGCSpan(ctx)
		defer span.End()
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

// startupResult and livenessResult convert the results of probes for ComputeActions.
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
