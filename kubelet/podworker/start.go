package podworker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/cri"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/pleg"
	"github.com/berth-dev/berth/kubelet/prober"
	"github.com/berth-dev/berth/kubelet/resources/rejection"
	"github.com/berth-dev/berth/kubelet/status"
	"github.com/berth-dev/berth/timeline"
)

// createSandbox starts to create a new sandbox, after the removal of an old one.
func (w *worker) createSandbox(ctx context.Context, actions kuberuntime.Actions) {
	if w.ops[opSandbox] != nil || w.hasContainerOps() || w.backingOff(opSandbox) || !w.networkReady() {
		return
	}
	if actions.SandboxChanged {
		w.eventNormal("", "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
	}
	pod, held := w.pod, w.runtime
	w.startOp(ctx, opSandbox, op{}, func(ctx context.Context) func() {
		id, config, err := w.replaceSandbox(ctx, pod, held, actions)
		return func() {
			w.sandboxConfig, w.sandboxConfigID = config, id
			if err == nil && held.Empty() {
				w.startedSinceRead = append(w.startedSinceRead, pleg.Started{Sandbox: id})
			} else {
				w.invalidate()
			}
			if w.rejectedBy(ctx, "", err) {
				return
			}
			if err != nil {
				if ctx.Err() == nil {
					w.reportSandboxError(err)
				}
				w.failStep(ctx, opSandbox, err)
				return
			}
			w.retries.done(opSandbox)
		}
	})
}

// prepareError is an error from making a Pod's directories or cgroup.
type prepareError struct{ error }

// Unwrap returns the cause.
func (e prepareError) Unwrap() error { return e.error }

// claimsError is an error from preparing a Pod's ResourceClaims.
type claimsError struct{ error }

// Unwrap returns the cause.
func (e claimsError) Unwrap() error { return e.error }

// reportSandboxError sends the event of a failed sandbox.
func (w *worker) reportSandboxError(err error) {
	if ground := (prepareError{}); errors.As(err, &ground) {
		w.eventWarning("", "FailedCreatePodContainer", "unable to ensure pod container exists: %s", errorMessage(err))
		return
	}
	if claims := (claimsError{}); errors.As(err, &claims) {
		w.eventWarning("", "FailedPrepareDynamicResources", "Failed to prepare dynamic resources: %s", errorMessage(err))
		return
	}
	w.eventWarning("", "FailedCreatePodSandBox", "Failed to create pod sandbox: %s", errorMessage(err))
}

// networkReady reports whether the runtime has a network for a sandbox; if not, it reports the reason once. A signal
// wakes the worker when that changes.
func (w *worker) networkReady() bool {
	missing := w.m.deps.Signals.network.Load()
	if missing == nil || w.pod.Spec.HostNetwork {
		w.networkError = ""
		return true
	}
	if *missing != w.networkError {
		w.networkError = *missing
		w.eventWarning("", "NetworkNotReady", "network is not ready: %s", w.networkError)
		w.m.deps.Timeline.Mark(w.timelineRef(), owner, timeline.StageSandbox, "", fmt.Errorf("network is not ready: %s", w.networkError))
	}
	return false
}

// replaceSandbox stops what the runtime has of the Pod and runs a new sandbox.
func (w *worker) replaceSandbox(ctx context.Context, pod *corev1.Pod, held *container.PodStatus,
	actions kuberuntime.Actions,
) (id string, config *runtimeapi.PodSandboxConfig, err error) {
	if !held.Empty() {
		noted, err := w.killPod(ctx, pod, held, kuberuntime.PodGracePeriod(pod, nil))
		noted()
		if err != nil {
			return "", nil, err
		}
		for _, c := range actions.Remove {
			if err := w.removeContainer(ctx, c); err != nil {
				return "", nil, err
			}
		}
	}
	span := w.m.deps.Timeline.Begin(timeline.PodRef(pod), owner, timeline.StageSandbox, "")
	defer func() { span.End(err) }()
	if err := w.m.deps.Builder.PreparePod(ctx, pod); err != nil {
		return "", nil, prepareError{err}
	}
	if err := w.m.deps.Builder.PrepareResources(ctx, pod); err != nil {
		return "", nil, claimsError{err}
	}
	handler, err := w.m.deps.Builder.RuntimeHandler(ctx, pod)
	if err != nil {
		return "", nil, err
	}
	if config, err = w.m.deps.Builder.Sandbox(ctx, pod, actions.Attempt); err != nil {
		return "", nil, err
	}
	w.busy.Add(1)
	defer w.busy.Add(-1)
	resp, err := w.m.deps.Runtime.RunPodSandbox(ctx,
		&runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
	w.m.deps.Metrics.SandboxStarted(pod, actions.Attempt == 0, err)
	if err != nil {
		return "", nil, timeline.WithReason(fmt.Errorf("run sandbox of pod %s/%s: %w", pod.Namespace, pod.Name, err),
			"FailedCreatePodSandBox", "the container runtime's message above names what failed: the pod network (CNI) or the runtime itself")
	}
	return resp.PodSandboxId, config, nil
}

// hasContainerOps reports whether an operation on one container is under way.
func (w *worker) hasContainerOps() bool {
	for key := range w.ops {
		if len(key) > len(opContainer) && key[:len(opContainer)] == opContainer {
			return true
		}
	}
	return false
}

// startContainers starts the containers that have all they need, in order. A container that others wait for (an init
// container, or one with a postStart hook) holds back those after it until it has started.
func (w *worker) startContainers(ctx context.Context, actions kuberuntime.Actions) {
	sandbox := kuberuntime.UsableSandbox(w.pod, w.runtime)
	if sandbox == nil {
		return
	}
	// The runtime cannot create a container whose limits exceed those of the Pod's cgroup.
	held := w.resize.cgroup == cgroupStale
	for _, o := range w.ops {
		held = held || o.blocking
	}
	for _, s := range actions.Start {
		if held && s.Kind != podutil.Ephemeral {
			continue
		}
		hold := s.Kind != podutil.Ephemeral &&
			(s.Blocking || s.Container.Lifecycle != nil && s.Container.Lifecycle.PostStart != nil)
		key := opContainer + s.Container.Name
		if image, _ := w.pulledImages(s.Container); image != nil && w.ops[key] == nil && w.volumesMounted && !w.backingOff(key) {
			w.startContainer(ctx, s, sandbox.Id, actions, hold)
		}
		held = held || hold
	}
}

// startContainer starts one container.
func (w *worker) startContainer(ctx context.Context, s kuberuntime.Start, sandboxID string, actions kuberuntime.Actions,
	hold bool,
) {
	key, name := opContainer+s.Container.Name, s.Container.Name
	image, volumes := w.pulledImages(s.Container)
	launch := &containerStart{
		actions: &w.podActions, backoff: w.m.backoff, pod: w.pod, start: s, sandboxID: sandboxID, attempt: actions.Attempt,
		request: ContainerRequest{
			Pod: w.pod, Start: s, Image: image, ImageVolumes: volumes, PodIPs: w.podIPs(),
		},
	}
	if s.Attempt > 0 {
		launch.known = knownIDs(w.runtime)
	}
	if w.sandboxConfigID == sandboxID {
		launch.sandbox = w.sandboxConfig
	}
	for _, c := range actions.Remove {
		if c.Name == name {
			launch.remove = append(launch.remove, c)
		}
	}
	w.forgetImages(s.Container)
	w.busy.Add(1) // until the container runs or has failed
	done := sync.OnceFunc(func() { w.busy.Add(-1) })
	launch.started = func(id string, at time.Time) {
		w.post(func() {
			done()
			w.containerStarted(launch, id, at)
		})
	}
	w.startOp(ctx, key, op{blocking: hold}, func(ctx context.Context) func() {
		returned := false
		defer func() {
			if !returned {
				done() // it panics
			}
		}()
		err := launch.run(ctx)
		returned = true
		return func() {
			done()
			if err == nil { // containerStarted has recorded that it runs
				w.retries.done(key)
				delete(w.waiting, name)
				return
			}
			w.invalidate()
			if w.rejectedBy(ctx, name, err) {
				return
			}
			var f *startError
			if errors.As(err, &f) {
				w.waiting[name] = status.Waiting{Reason: f.reason, Message: f.text}
			}
			w.failStep(ctx, key, err)
		}
	})
}

// rejectedBy reports whether a step has failed for good, as a *rejection.Error says; the Pod fails with its reason.
func (w *worker) rejectedBy(ctx context.Context, container string, err error) bool {
	var refused *rejection.Error
	if !errors.As(err, &refused) || w.failure != nil || ctx.Err() != nil {
		return false
	}
	w.failure = &status.Failure{Reason: refused.Reason, Message: "Pod was rejected: " + refused.Message}
	w.eventWarning(container, refused.Reason, "%s", w.failure.Message)
	return true
}

// containerStarted records that a container runs, and starts its probes.
func (w *worker) containerStarted(s *containerStart, id string, at time.Time) {
	name := s.start.Container.Name
	if len(s.remove) == 0 {
		w.startedSinceRead = append(w.startedSinceRead, pleg.Started{Sandbox: s.sandboxID, Container: id})
	} else {
		w.invalidate()
	}
	delete(w.waiting, name)
	w.resize.pinned[id] = s.cpus
	if w.state != syncing {
		return
	}
	w.probed[id] = true
	w.m.deps.Probes.ContainerStarted(s.pod, prober.Container{
		Name: name, ID: id, PodIP: firstIP(w.podIPs()), StartedAt: at,
	})
}

func (w *worker) podIPs() []string { return w.m.podIPs(w.pod, w.runtime) }

// podIPs returns the addresses of a Pod, the primary one first, as its status has them.
func (m *Manager) podIPs(pod *corev1.Pod, held *container.PodStatus) []string {
	if pod.Spec.HostNetwork {
		return m.config.HostIPs()
	}
	return container.OnePerFamily(held.IPs, firstIP(m.config.HostIPs()))
}

// errorMessage returns the text of an error for users.
func errorMessage(err error) string {
	if cri.IsUnavailable(err) {
		return "the container runtime cannot be reached: " + cri.Message(err)
	}
	return cri.Message(err)
}

func firstIP(ips []string) string {
	if len(ips) == 0 {
		return ""
	}
	return ips[0]
}
