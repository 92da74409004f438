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
	opVolumes = "volumes"
	opSandbox = "sandbox"
	opRestart = "restart all"
	opCollect = "collect"
	opImage   = "image "
	opCtr     = "container "
)

// sync decides what the Pod needs now and begins it.
func (w *worker) sync(ctx context.Context) {
	w.grant()
	actions := kuberuntime.ComputeActions(w.pod, w.runtime, kuberuntime.Inputs{
		Now:      w.m.deps.Clock.Now(),
		Backoff:  w.m.backoff,
		Startup:  w.startup,
		Liveness: w.liveness,
		Resources: func(c *corev1.Container) *runtimeapi.LinuxContainerResources {
			return w.m.deps.Builder.Resources(w.pod, c)
		},
		LastAttempt: func(name string) (uint32, bool) { return w.m.deps.Builder.LastAttempt(w.pod, name) },
	})
	if !actions.NextLook.IsZero() {
		w.lookAt(actions.NextLook)
	}
	if actions.Finished {
		w.end()
		w.terminate(ctx)
		return
	}
	w.crashed(actions.Waiting)
	w.mount(ctx)
	w.pull(ctx, actions)
	switch {
	case actions.RestartAll:
		w.restartAll(ctx, actions)
	case actions.CreateSandbox:
		w.sandbox(ctx, actions)
	default:
		w.settle(ctx, actions)
		for _, kill := range actions.Kill {
			w.kill(ctx, kill)
		}
		w.start(ctx, actions)
		w.collect(ctx, actions)
	}
}

// mount begins to set the Pod's volumes up.
func (w *worker) mount(ctx context.Context) {
	if w.prepared || w.ops[opVolumes] != nil || w.waits(opVolumes) {
		return
	}
	pod := w.pod
	w.begin(ctx, opVolumes, op{}, func(ctx context.Context) func() {
		err := w.m.deps.Volumes.Mount(ctx, pod)
		return func() {
			switch {
			case err == nil:
				w.retries.done(opVolumes)
				w.prepared = true
			case volume.IsUnsupported(err) && w.failure == nil:
				// What a claim turned out to be cannot be had here: no retry will help.
				w.failure = &status.Failure{Reason: "UnsupportedField", Message: err.Error()}
			case volume.IsAttachLimitExceeded(err) && w.failure == nil:
				// The scheduler did not know: whoever owns the Pod makes another, for which there may be room elsewhere.
				w.failure = &status.Failure{Reason: "VolumeAttachmentLimitExceeded", Message: err.Error()}
			default:
				w.fail(ctx, opVolumes, err)
			}
		}
	})
}

// fail notes that a step failed, unless it was given up because the Pod ends or the node agent does.
func (w *worker) fail(ctx context.Context, step string, err error) {
	if ctx.Err() == nil {
		w.failed(step, err)
	}
}

// crashed notes the containers that wait out their backoff, with one event for each wait.
func (w *worker) crashed(waiting []kuberuntime.Waiting) {
	const reason = "CrashLoopBackOff"
	for name, why := range w.waiting {
		if why.Reason == reason {
			delete(w.waiting, name)
		}
	}
	for _, crash := range waiting {
		if w.ops[opCtr+crash.Container] != nil {
			continue // it is being started, and its next wait was noted with that
		}
		w.waiting[crash.Container] = status.Waiting{Reason: reason, Message: crash.Message}
		if !w.backoffs[crash.Container].Equal(crash.Until) {
			w.backoffs[crash.Container] = crash.Until
			w.warn(crash.Container, "BackOff", "Back-off restarting failed container %s in pod %s_%s(%s)",
				crash.Container, w.pod.Name, w.pod.Namespace, w.uid)
		}
	}
}

// restartAll takes all containers down so that they start over.
func (w *worker) restartAll(ctx context.Context, actions kuberuntime.Actions) {
	if len(w.ops) > 0 || w.waits(opRestart) {
		return
	}
	pod, ip := w.pod, first(w.podIPs())
	w.begin(ctx, opRestart, op{}, func(ctx context.Context) func() {
		err := w.takeAllDown(ctx, pod, actions, ip)
		return func() {
			w.touched()
			if err != nil {
				w.fail(ctx, opRestart, err)
				return
			}
			w.retries.done(opRestart)
			clear(w.images)
		}
	})
}

// takeAllDown stops and removes what is in the way of a restart of all containers. It stops at the first error: the
// instances whose exit asks for the restart stand last, and without them nobody would know that it is not done.
func (w *worker) takeAllDown(ctx context.Context, pod *corev1.Pod, actions kuberuntime.Actions, ip string) error {
	for _, kill := range actions.Kill {
		if err := w.killOne(ctx, pod, kill, ip); err != nil {
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

// kill begins to stop one container while its Pod goes on.
func (w *worker) kill(ctx context.Context, kill kuberuntime.Kill) {
	key := opCtr + kill.Status.Name
	if w.ops[key] != nil || w.waits(key) {
		return
	}
	if f, ok := w.m.deps.Probes.Failed(kill.Status.ID); ok && kill.GracePeriod == nil {
		kill.GracePeriod = f.GraceSeconds
	}
	pod, ip := w.pod, first(w.podIPs())
	w.begin(ctx, key, op{}, func(ctx context.Context) func() {
		err := w.killOne(ctx, pod, kill, ip)
		return func() {
			w.touched()
			if err != nil {
				w.fail(ctx, key, err)
				return
			}
			w.retries.done(key)
		}
	})
}

// collect removes instances and sandboxes that nobody will ask for any more: of each container the two newest
// instances stay, for its state and its last one.
func (w *worker) collect(ctx context.Context, actions kuberuntime.Actions) {
	if len(w.ops) > 0 || len(actions.Start) > 0 || w.waits(opCollect) {
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
	w.begin(ctx, opCollect, op{}, func(ctx context.Context) func() {
		var errs []error
		for _, c := range dead {
			errs = append(errs, w.removeContainer(ctx, c))
		}
		for _, id := range boxes {
			errs = append(errs, w.removeSandbox(ctx, id))
		}
		err := errors.Join(errs...)
		return func() {
			w.changed = true
			if err != nil {
				w.fail(ctx, opCollect, err)
				return
			}
			w.retries.done(opCollect)
		}
	})
}

// startup and liveness are the verdicts of probes in the words of the decision.
func (w *worker) startup(id string) kuberuntime.Verdict {
	if f, ok := w.m.deps.Probes.Failed(id); ok && f.Type == prober.Startup {
		return kuberuntime.VerdictFailure
	}
	if started, _ := w.m.deps.Probes.Started(id); started {
		return kuberuntime.VerdictSuccess
	}
	return kuberuntime.VerdictUnknown
}

func (w *worker) liveness(id string) kuberuntime.Verdict {
	if f, ok := w.m.deps.Probes.Failed(id); ok && f.Type == prober.Liveness {
		return kuberuntime.VerdictFailure
	}
	return kuberuntime.VerdictUnknown
}
