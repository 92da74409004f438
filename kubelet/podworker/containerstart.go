package podworker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/timeline"
)

// containerStart starts one container. It runs beside the worker and reads only what it was made with.
type containerStart struct {
	actions *podActions
	backoff *kuberuntime.Backoff
	pod     *corev1.Pod
	start   kuberuntime.Start
	// sandboxID is the sandbox to start in, attempt its number.
	sandboxID string
	attempt   uint32
	// sandbox is the configuration that the sandbox was made with; nil if an earlier process made it.
	sandbox *runtimeapi.PodSandboxConfig
	request ContainerRequest
	// cpus are those that the container was created with; empty for all.
	cpus string
	// known are the IDs of the containers and sandboxes that the runtime had when the start was decided.
	known map[string]bool
	// remove are earlier instances to be removed first.
	remove []*container.ContainerStatus
	// started reports at once that the container runs, whatever its postStart hook still does.
	started func(id string, at time.Time)
}

// run creates and starts the container and runs its postStart hook.
func (s *containerStart) run(ctx context.Context) error {
	name := s.start.Container.Name
	id, err := s.createAndStart(ctx)
	s.actions.deps.Metrics.ContainerStarted(s.pod, s.start.Kind, startErrorReason(err), err)
	if err != nil {
		s.actions.reportStartError(ctx, name, err)
		return err
	}
	s.actions.deps.Allocations.Actuate(s.pod, name)
	s.started(id, s.actions.deps.Clock.Now()) // before the events: the status is more urgent
	s.actions.eventNormal(name, "Created", "Container created")
	s.actions.eventNormal(name, "Started", "Container started")
	return s.postStart(ctx, id)
}

// createAndStart creates and starts the container, after the removal of earlier instances.
func (s *containerStart) createAndStart(ctx context.Context) (id string, err error) {
	name := s.start.Container.Name
	for _, c := range s.remove {
		if err := s.actions.removeContainer(ctx, c); err != nil {
			return "", newStartError("CreateContainerError", err)
		}
	}
	if err := s.endLost(ctx); err != nil {
		return "", newStartError("CreateContainerError", err)
	}
	create, err := s.createRequest(ctx)
	if err != nil {
		return "", newStartError("CreateContainerConfigError", err)
	}
	s.backoff.Started(s.pod.UID, s.start.BackoffKey, s.start.BackoffSince, s.actions.deps.Clock.Now())
	span := s.actions.deps.Timeline.Begin(timeline.PodRef(s.pod), owner, timeline.StageCreate, name)
	resp, err := s.actions.deps.Runtime.CreateContainer(ctx, create)
	span.End(err)
	s.countImageVolumes(err)
	if err != nil {
		return "", newStartError("CreateContainerError", err)
	}
	span = s.actions.deps.Timeline.Begin(timeline.PodRef(s.pod), owner, timeline.StageStart, name)
	_, err = s.actions.deps.Runtime.StartContainer(uncancelled(ctx),
		&runtimeapi.StartContainerRequest{ContainerId: resp.ContainerId})
	span.End(err)
	if err != nil {
		return "", newStartError("RunContainerError", fmt.Errorf("failed to start container %q: %w", name, err))
	}
	return resp.ContainerId, nil
}

// endLost ends the containers of the Pod that run and that the runtime has lost, so that no two instances of a container run at a time:
// containerd forgets one that it cannot write the status of when it starts, as on a full disk. Only a restart can meet such an instance.
func (s *containerStart) endLost(ctx context.Context) error {
	if s.start.Attempt == 0 {
		return nil
	}
	ids, err := s.actions.deps.Builder.Cgroups(s.pod) // before the runtime is read, which has a container before its cgroup exists
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(ids, func(id string) bool { return !s.known[id] }) {
		return nil
	}
	now, err := s.actions.deps.Reader.Read(ctx, s.pod.UID)
	if err != nil {
		return fmt.Errorf("list the containers of the runtime: %w", err)
	}
	known := knownIDs(now)
	for _, id := range ids {
		if s.known[id] || known[id] {
			continue
		}
		s.actions.deps.Logger.Warn("the container runtime has lost a container that may run; ending its processes",
			"pod", podutil.Name(s.pod), "container", id)
		if err := s.actions.deps.Builder.RemoveCgroup(uncancelled(ctx), s.pod, id); err != nil {
			return err
		}
	}
	return nil
}

// knownIDs returns the IDs of all containers and sandboxes that the runtime has of a Pod; nil has none.
func knownIDs(held *container.PodStatus) map[string]bool {
	known := map[string]bool{}
	if held == nil {
		return known
	}
	for _, c := range held.Containers {
		known[c.ID] = true
	}
	for _, box := range held.Sandboxes {
		known[box.Id] = true
	}
	return known
}

// countImageVolumes records whether the runtime has mounted the container's image volumes, by the result of its creation.
func (s *containerStart) countImageVolumes(err error) {
	if len(s.request.ImageVolumes) == 0 {
		return
	}
	mounts := 0
	for _, mount := range s.start.Container.VolumeMounts {
		if s.request.ImageVolumes[mount.Name] != nil {
			mounts++
		}
	}
	refused := err != nil && strings.HasPrefix(grpcstatus.Convert(err).Message(), crierrors.ErrImageVolumeMountFailed.Error())
	s.actions.deps.Metrics.ImageVolumes(len(s.request.ImageVolumes), mounts, !refused)
}

// createRequest returns what the runtime is asked to create.
func (s *containerStart) createRequest(ctx context.Context) (*runtimeapi.CreateContainerRequest, error) {
	config, err := s.actions.deps.Builder.Container(ctx, s.request)
	if err != nil {
		return nil, err
	}
	s.cpus = config.GetLinux().GetResources().GetCpusetCpus()
	sandbox := s.sandbox
	if sandbox == nil {
		if sandbox, err = s.actions.deps.Builder.Sandbox(ctx, s.pod, s.attempt); err != nil {
			return nil, err
		}
	}
	return &runtimeapi.CreateContainerRequest{
		PodSandboxId: s.sandboxID, Config: config, SandboxConfig: sandbox,
	}, nil
}

// postStart runs the container's postStart hook. A container whose hook fails is killed.
func (s *containerStart) postStart(ctx context.Context, id string) error {
	c := s.start.Container
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	span := s.actions.deps.Timeline.Begin(timeline.PodRef(s.pod), owner, timeline.StagePostStart, c.Name)
	target := lifecycle.Target{Pod: s.pod, Container: c, ContainerID: id, PodIP: firstIP(s.request.PodIPs)}
	err := s.actions.deps.Hooks.Run(ctx, target, c.Lifecycle.PostStart)
	span.End(err)
	if err == nil || ctx.Err() != nil {
		return nil
	}
	s.actions.eventWarning(c.Name, "FailedPostStartHook", "PostStartHook failed")
	kill := kuberuntime.Kill{
		Status:    &container.ContainerStatus{ID: id, Name: c.Name, State: container.StateRunning},
		Container: c, Message: "FailedPostStartHook",
	}
	return errors.Join(newStartError("PostStartHookError", err), s.actions.killContainer(ctx, s.pod, kill, target.PodIP))
}

// startErrorReason returns the reason of a failed start, empty for none.
func startErrorReason(err error) string {
	var f *startError
	if errors.As(err, &f) {
		return f.reason
	}
	return ""
}

// startError is the error of a step of a container's start.
type startError struct {
	reason, text string
	err          error
}

func (f *startError) Error() string { return f.reason + ": " + f.text }
func (f *startError) Unwrap() error { return f.err }

func newStartError(reason string, err error) error {
	return &startError{reason: reason, text: errorMessage(err), err: err}
}
