package fake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
)

// Runtime is the fake runtime. It is safe for concurrent use. CRI methods that it does not implement panic.
//
// It is large because it implements both services of the CRI on one state, and tests set each part of that state.
type Runtime struct {
	runtimeapi.RuntimeServiceClient
	runtimeapi.ImageServiceClient

	clock clock.PassiveClock

	mu         sync.Mutex // guards all below
	next       int
	sandboxes  map[string]*runtimeapi.PodSandboxStatus
	containers map[string]*runtimeapi.ContainerStatus
	sandboxOf  map[string]string
	images     map[string]*runtimeapi.Image
	calls      map[string]int
	failures   map[string][]error
	// sandboxResources are those of UpdatePodSandboxResources.
	sandboxResources []*runtimeapi.LinuxContainerResources
	gates            map[string]chan struct{}
	streams          map[*stream]struct{}
	// held are the events that wait for the end of HoldEvents.
	held            []*runtimeapi.ContainerEventResponse
	holding         bool
	exits           map[string]int32
	interruptStarts bool // see InterruptStarts
	cgroupDriver    *runtimeapi.CgroupDriver
	memoryUsage     map[string]uint64 // by container name
	stopTimeouts    []int64
}

// New returns a Runtime without sandboxes, containers and images.
func New(clock clock.PassiveClock) *Runtime {
	return &Runtime{
		clock: clock, sandboxes: map[string]*runtimeapi.PodSandboxStatus{},
		containers: map[string]*runtimeapi.ContainerStatus{}, sandboxOf: map[string]string{},
		images: map[string]*runtimeapi.Image{}, calls: map[string]int{}, failures: map[string][]error{},
		gates: map[string]chan struct{}{}, streams: map[*stream]struct{}{}, exits: map[string]int32{},
		memoryUsage: map[string]uint64{},
	}
}

// FailNext makes the next call of the CRI method return the error.
func (r *Runtime) FailNext(method string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures[method] = append(r.failures[method], err)
}

// Block blocks calls of the CRI method until the returned function is called.
func (r *Runtime) Block(method string) (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	gate := make(chan struct{})
	r.gates[method] = gate
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.gates[method] == gate {
			delete(r.gates, method)
		}
		close(gate)
	})
}

// Calls returns the number of calls of the CRI method.
func (r *Runtime) Calls(method string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[method]
}

// AddImage adds an image.
func (r *Runtime) AddImage(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.images[name] = &runtimeapi.Image{Id: "sha256:" + name, RepoTags: []string{name}}
}

// ExitOnStart makes containers of that name exit with the code as soon as they are started.
func (r *Runtime) ExitOnStart(name string, code int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.exits[name] = code
}

// InterruptStarts makes later starts, if interrupt is true, behave as if the client died during the call: the container
// never runs and its state is exited.
func (r *Runtime) InterruptStarts(interrupt bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.interruptStarts = interrupt
}

// ClearExitOnStart undoes ExitOnStart.
func (r *Runtime) ClearExitOnStart(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.exits, name)
}

// Exit stops the running container of that name.
func (r *Runtime) Exit(name string, code int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		if c.Metadata.Name == name && c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			r.exit(c, code)
		}
	}
}

// Running returns the number of running containers by name.
func (r *Runtime) Running() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]int{}
	for _, c := range r.containers {
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			out[c.Metadata.Name]++
		}
	}
	return out
}

// Counts returns the number of sandboxes and containers in any state.
func (r *Runtime) Counts() (sandboxes, containers int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.sandboxes), len(r.containers)
}

// enter counts a call, waits while the method is blocked, and returns the next failure set by FailNext.
func (r *Runtime) enter(ctx context.Context, method string) error {
	r.mu.Lock()
	r.calls[method]++
	gate := r.gates[method]
	r.mu.Unlock()
	if ctx.Err() != nil { // a client does not send it
		return status.FromContextError(ctx.Err()).Err()
	}
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if list := r.failures[method]; len(list) > 0 {
		r.failures[method] = list[1:]
		return list[0]
	}
	return nil
}

func (r *Runtime) id(kind string) string {
	r.next++
	return fmt.Sprintf("%s-%d", kind, r.next)
}

// RunPodSandbox implements the CRI.
func (r *Runtime) RunPodSandbox(ctx context.Context, in *runtimeapi.RunPodSandboxRequest, _ ...grpc.CallOption,
) (*runtimeapi.RunPodSandboxResponse, error) {
	if err := r.enter(ctx, "RunPodSandbox"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	meta := in.Config.Metadata
	for _, s := range r.sandboxes {
		if s.Metadata.Uid == meta.Uid && s.Metadata.Attempt == meta.Attempt {
			return nil, status.Errorf(codes.Unknown, "sandbox name is reserved for %q", s.Id)
		}
	}
	s := &runtimeapi.PodSandboxStatus{
		Id: r.id("sandbox"), Metadata: meta, State: runtimeapi.PodSandboxState_SANDBOX_READY,
		CreatedAt: r.clock.Now().UnixNano(), Labels: in.Config.Labels, Annotations: in.Config.Annotations,
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.1.0.2"},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: in.Config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
	}
	r.sandboxes[s.Id] = s
	r.emit(s, s.Id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: s.Id}, nil
}

// StopPodSandbox implements the CRI.
func (r *Runtime) StopPodSandbox(ctx context.Context, in *runtimeapi.StopPodSandboxRequest, _ ...grpc.CallOption,
) (*runtimeapi.StopPodSandboxResponse, error) {
	if err := r.enter(ctx, "StopPodSandbox"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[in.PodSandboxId]
	if s == nil {
		return &runtimeapi.StopPodSandboxResponse{}, nil
	}
	for id, c := range r.containers {
		if r.sandboxOf[id] == s.Id && c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			r.exit(c, 137)
		}
	}
	s.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	r.emit(s, s.Id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// RemovePodSandbox implements the CRI.
func (r *Runtime) RemovePodSandbox(ctx context.Context, in *runtimeapi.RemovePodSandboxRequest, _ ...grpc.CallOption,
) (*runtimeapi.RemovePodSandboxResponse, error) {
	if err := r.enter(ctx, "RemovePodSandbox"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sandboxes, in.PodSandboxId)
	maps.DeleteFunc(r.containers, func(id string, _ *runtimeapi.ContainerStatus) bool {
		return r.sandboxOf[id] == in.PodSandboxId
	})
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// CreateContainer implements the CRI.
func (r *Runtime) CreateContainer(ctx context.Context, in *runtimeapi.CreateContainerRequest, _ ...grpc.CallOption,
) (*runtimeapi.CreateContainerResponse, error) {
	if err := r.enter(ctx, "CreateContainer"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	sandbox := r.sandboxes[in.PodSandboxId]
	if sandbox == nil || sandbox.State != runtimeapi.PodSandboxState_SANDBOX_READY {
		return nil, status.Errorf(codes.NotFound, "sandbox %q is not ready", in.PodSandboxId)
	}
	for id, c := range r.containers {
		if r.sandboxOf[id] == sandbox.Id && c.Metadata.Name == in.Config.Metadata.Name &&
			c.Metadata.Attempt == in.Config.Metadata.Attempt {
			return nil, status.Errorf(codes.Unknown, "container name is reserved for %q", id)
		}
	}
	c := &runtimeapi.ContainerStatus{
		Id: r.id("container"), Metadata: in.Config.Metadata, Image: in.Config.Image,
		ImageRef: in.Config.GetImage().GetImage(), CreatedAt: r.clock.Now().UnixNano(),
		State: runtimeapi.ContainerState_CONTAINER_CREATED, Labels: in.Config.Labels,
		Annotations: in.Config.Annotations, Mounts: in.Config.Mounts,
	}
	if linux := in.Config.GetLinux().GetResources(); linux != nil {
		c.Resources = &runtimeapi.ContainerResources{Linux: linux}
	}
	r.containers[c.Id], r.sandboxOf[c.Id] = c, sandbox.Id
	r.emit(sandbox, c.Id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	return &runtimeapi.CreateContainerResponse{ContainerId: c.Id}, nil
}

// StartContainer implements the CRI.
func (r *Runtime) StartContainer(ctx context.Context, in *runtimeapi.StartContainerRequest, _ ...grpc.CallOption,
) (*runtimeapi.StartContainerResponse, error) {
	if err := r.enter(ctx, "StartContainer"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[in.ContainerId]
	if c == nil || c.State != runtimeapi.ContainerState_CONTAINER_CREATED {
		return nil, status.Errorf(codes.NotFound, "container %q cannot be started", in.ContainerId)
	}
	if r.interruptStarts {
		c.State, c.ExitCode, c.Reason = runtimeapi.ContainerState_CONTAINER_EXITED, 137, "Error"
		c.FinishedAt = r.clock.Now().UnixNano()
		return nil, status.Error(codes.Unavailable, "the connection is gone")
	}
	c.State, c.StartedAt = runtimeapi.ContainerState_CONTAINER_RUNNING, r.clock.Now().UnixNano()
	r.emit(r.sandboxes[r.sandboxOf[c.Id]], c.Id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	if code, ok := r.exits[c.Metadata.Name]; ok {
		r.exit(c, code)
	}
	return &runtimeapi.StartContainerResponse{}, nil
}

// UpdateContainerResources implements the CRI.
func (r *Runtime) UpdateContainerResources(ctx context.Context, in *runtimeapi.UpdateContainerResourcesRequest,
	_ ...grpc.CallOption,
) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	if err := r.enter(ctx, "UpdateContainerResources"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[in.ContainerId]
	if c == nil {
		return nil, status.Errorf(codes.NotFound, "container %q not found", in.ContainerId)
	}
	c.Resources = &runtimeapi.ContainerResources{Linux: in.Linux}
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// UpdatePodSandboxResources implements the CRI.
func (r *Runtime) UpdatePodSandboxResources(ctx context.Context, in *runtimeapi.UpdatePodSandboxResourcesRequest,
	_ ...grpc.CallOption,
) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	if err := r.enter(ctx, "UpdatePodSandboxResources"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sandboxes[in.PodSandboxId] == nil {
		return nil, status.Errorf(codes.NotFound, "sandbox %q not found", in.PodSandboxId)
	}
	r.sandboxResources = append(r.sandboxResources, in.Resources)
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}

// SandboxResources returns the resources of all calls of UpdatePodSandboxResources.
func (r *Runtime) SandboxResources() []*runtimeapi.LinuxContainerResources {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.sandboxResources)
}

// StopTimeouts returns the timeouts of the calls of StopContainer that have returned without an error, in seconds.
func (r *Runtime) StopTimeouts() []int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.stopTimeouts)
}

// StopContainer implements the CRI.
func (r *Runtime) StopContainer(ctx context.Context, in *runtimeapi.StopContainerRequest, _ ...grpc.CallOption,
) (*runtimeapi.StopContainerResponse, error) {
	if err := r.enter(ctx, "StopContainer"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopTimeouts = append(r.stopTimeouts, in.Timeout)
	if c := r.containers[in.ContainerId]; c != nil && c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
		r.exit(c, 143)
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

// RemoveContainer implements the CRI.
func (r *Runtime) RemoveContainer(ctx context.Context, in *runtimeapi.RemoveContainerRequest, _ ...grpc.CallOption,
) (*runtimeapi.RemoveContainerResponse, error) {
	if err := r.enter(ctx, "RemoveContainer"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.containers, in.ContainerId)
	return &runtimeapi.RemoveContainerResponse{}, nil
}

// exit stops a container. The caller holds mu.
func (r *Runtime) exit(c *runtimeapi.ContainerStatus, code int32) {
	c.State, c.ExitCode = runtimeapi.ContainerState_CONTAINER_EXITED, code
	c.FinishedAt = r.clock.Now().UnixNano()
	r.emit(r.sandboxes[r.sandboxOf[c.Id]], c.Id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// DropPod removes all sandboxes and containers of the Pod without an event, as a runtime that lost one would.
func (r *Runtime) DropPod(uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, s := range r.sandboxes {
		if s.Metadata.Uid == uid {
			delete(r.sandboxes, id)
			maps.DeleteFunc(r.containers, func(c string, _ *runtimeapi.ContainerStatus) bool { return r.sandboxOf[c] == id })
		}
	}
}
