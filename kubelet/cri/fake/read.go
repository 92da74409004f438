package fake

import (
	"context"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Version implements the CRI.
func (r *Runtime) Version(ctx context.Context, _ *runtimeapi.VersionRequest, _ ...grpc.CallOption,
) (*runtimeapi.VersionResponse, error) {
	if err := r.enter(ctx, "Version"); err != nil {
		return nil, err
	}
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "fake", RuntimeVersion: "v1", RuntimeApiVersion: "v1"}, nil
}

// ListPodSandbox implements the CRI. Of the filter it supports the labels.
func (r *Runtime) ListPodSandbox(ctx context.Context, in *runtimeapi.ListPodSandboxRequest, _ ...grpc.CallOption,
) (*runtimeapi.ListPodSandboxResponse, error) {
	if err := r.enter(ctx, "ListPodSandbox"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &runtimeapi.ListPodSandboxResponse{}
	for _, s := range r.sandboxes {
		if matches(s.Labels, in.GetFilter().GetLabelSelector()) {
			out.Items = append(out.Items, &runtimeapi.PodSandbox{
				Id: s.Id, Metadata: s.Metadata, State: s.State, Labels: s.Labels, CreatedAt: s.CreatedAt,
			})
		}
	}
	return out, nil
}

// ListContainers implements the CRI. Of the filter it supports the labels.
func (r *Runtime) ListContainers(ctx context.Context, in *runtimeapi.ListContainersRequest, _ ...grpc.CallOption,
) (*runtimeapi.ListContainersResponse, error) {
	if err := r.enter(ctx, "ListContainers"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &runtimeapi.ListContainersResponse{}
	for id, c := range r.containers {
		if matches(c.Labels, in.GetFilter().GetLabelSelector()) {
			out.Containers = append(out.Containers, &runtimeapi.Container{
				Id: id, PodSandboxId: r.sandboxOf[id], Metadata: c.Metadata, State: c.State, Labels: c.Labels,
				Annotations: c.Annotations,
			})
		}
	}
	return out, nil
}

// PodSandboxStatus implements the CRI.
func (r *Runtime) PodSandboxStatus(ctx context.Context, in *runtimeapi.PodSandboxStatusRequest, _ ...grpc.CallOption,
) (*runtimeapi.PodSandboxStatusResponse, error) {
	if err := r.enter(ctx, "PodSandboxStatus"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[in.PodSandboxId]
	if s == nil {
		return nil, status.Errorf(codes.NotFound, "no sandbox %q", in.PodSandboxId)
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: proto.Clone(s).(*runtimeapi.PodSandboxStatus)}, nil
}

// ContainerStatus implements the CRI.
func (r *Runtime) ContainerStatus(ctx context.Context, in *runtimeapi.ContainerStatusRequest, _ ...grpc.CallOption,
) (*runtimeapi.ContainerStatusResponse, error) {
	if err := r.enter(ctx, "ContainerStatus"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[in.ContainerId]
	if c == nil {
		return nil, status.Errorf(codes.NotFound, "no container %q", in.ContainerId)
	}
	return &runtimeapi.ContainerStatusResponse{Status: proto.Clone(c).(*runtimeapi.ContainerStatus)}, nil
}

// ImageStatus implements the CRI.
func (r *Runtime) ImageStatus(ctx context.Context, in *runtimeapi.ImageStatusRequest, _ ...grpc.CallOption,
) (*runtimeapi.ImageStatusResponse, error) {
	if err := r.enter(ctx, "ImageStatus"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return &runtimeapi.ImageStatusResponse{Image: r.images[in.Image.Image]}, nil
}

// PullImage implements the CRI: every pull succeeds.
func (r *Runtime) PullImage(ctx context.Context, in *runtimeapi.PullImageRequest, _ ...grpc.CallOption,
) (*runtimeapi.PullImageResponse, error) {
	if err := r.enter(ctx, "PullImage"); err != nil {
		return nil, err
	}
	r.AddImage(in.Image.Image)
	return &runtimeapi.PullImageResponse{ImageRef: in.Image.Image}, nil
}

// GetContainerEvents implements the CRI. A reader that is 1000 events behind loses later ones.
func (r *Runtime) GetContainerEvents(ctx context.Context, _ *runtimeapi.GetEventsRequest, _ ...grpc.CallOption,
) (grpc.ServerStreamingClient[runtimeapi.ContainerEventResponse], error) {
	if err := r.enter(ctx, "GetContainerEvents"); err != nil {
		return nil, err
	}
	s := &stream{ctx: ctx, events: make(chan *runtimeapi.ContainerEventResponse, 1000), closed: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams[s] = struct{}{}
	return s, nil
}

// CloseEventStreams ends all event streams, as a restart of the runtime does.
func (r *Runtime) CloseEventStreams() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.streams {
		close(s.closed)
		delete(r.streams, s)
	}
}

// emit sends an event to all readers. The caller holds mu.
func (r *Runtime) emit(sandbox *runtimeapi.PodSandboxStatus, id string, kind runtimeapi.ContainerEventType) {
	event := &runtimeapi.ContainerEventResponse{
		ContainerId: id, ContainerEventType: kind, CreatedAt: r.clock.Now().UnixNano(),
	}
	if sandbox != nil {
		event.PodSandboxStatus = proto.Clone(sandbox).(*runtimeapi.PodSandboxStatus)
	}
	if r.holding {
		r.held = append(r.held, event)
		return
	}
	r.send(event)
}

// send sends an event to all readers. The caller holds mu.
func (r *Runtime) send(event *runtimeapi.ContainerEventResponse) {
	for s := range r.streams {
		select {
		case s.events <- event:
		default:
		}
	}
}

// HoldEvents keeps back events, as a busy runtime does, until release is called.
func (r *Runtime) HoldEvents() (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holding = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, event := range r.held {
			r.send(event)
		}
		r.holding, r.held = false, nil
	}
}

// stream is the event stream of one reader.
type stream struct {
	grpc.ClientStream
	ctx    context.Context
	events chan *runtimeapi.ContainerEventResponse
	closed chan struct{}
}

// Recv waits for the next event.
func (s *stream) Recv() (*runtimeapi.ContainerEventResponse, error) {
	select {
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	case <-s.closed:
		return nil, io.EOF
	case event := <-s.events:
		return event, nil
	}
}

func matches(labels, selector map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}

// ListPodSandboxStats implements the CRI. It returns no stats.
func (r *Runtime) ListPodSandboxStats(ctx context.Context, _ *runtimeapi.ListPodSandboxStatsRequest, _ ...grpc.CallOption,
) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	if err := r.enter(ctx, "ListPodSandboxStats"); err != nil {
		return nil, err
	}
	return &runtimeapi.ListPodSandboxStatsResponse{}, nil
}

// SetMemoryUsage sets how many bytes of memory the containers of that name use; 0 before.
func (r *Runtime) SetMemoryUsage(container string, usage uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.memoryUsage[container] = usage
}

// PodSandboxStats implements the CRI. It returns the memory usage of running containers and their sum.
func (r *Runtime) PodSandboxStats(ctx context.Context, in *runtimeapi.PodSandboxStatsRequest, _ ...grpc.CallOption,
) (*runtimeapi.PodSandboxStatsResponse, error) {
	if err := r.enter(ctx, "PodSandboxStats"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sandboxes[in.PodSandboxId] == nil {
		return nil, status.Errorf(codes.NotFound, "sandbox %q not found", in.PodSandboxId)
	}
	usage := func(bytes uint64) *runtimeapi.MemoryUsage {
		return &runtimeapi.MemoryUsage{UsageBytes: &runtimeapi.UInt64Value{Value: bytes}}
	}
	linux, total := &runtimeapi.LinuxPodSandboxStats{}, uint64(0)
	for id, c := range r.containers {
		if r.sandboxOf[id] != in.PodSandboxId || c.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		bytes := r.memoryUsage[c.Metadata.Name]
		total += bytes
		linux.Containers = append(linux.Containers, &runtimeapi.ContainerStats{
			Attributes: &runtimeapi.ContainerAttributes{Id: id, Metadata: c.Metadata}, Memory: usage(bytes),
		})
	}
	linux.Memory = usage(total)
	return &runtimeapi.PodSandboxStatsResponse{Stats: &runtimeapi.PodSandboxStats{Linux: linux}}, nil
}

// ImageFsInfo implements the CRI. It returns no file system.
func (r *Runtime) ImageFsInfo(ctx context.Context, _ *runtimeapi.ImageFsInfoRequest, _ ...grpc.CallOption,
) (*runtimeapi.ImageFsInfoResponse, error) {
	if err := r.enter(ctx, "ImageFsInfo"); err != nil {
		return nil, err
	}
	return &runtimeapi.ImageFsInfoResponse{}, nil
}

// SetCgroupDriver sets the result of RuntimeConfig, which is unimplemented before.
func (r *Runtime) SetCgroupDriver(driver runtimeapi.CgroupDriver) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cgroupDriver = &driver
}

// RuntimeConfig implements the CRI.
func (r *Runtime) RuntimeConfig(ctx context.Context, _ *runtimeapi.RuntimeConfigRequest, _ ...grpc.CallOption,
) (*runtimeapi.RuntimeConfigResponse, error) {
	if err := r.enter(ctx, "RuntimeConfig"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cgroupDriver == nil {
		return nil, status.Error(codes.Unimplemented, "unknown method RuntimeConfig")
	}
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: *r.cgroupDriver}}, nil
}

// Status implements the CRI: the runtime and its network are ready.
func (r *Runtime) Status(ctx context.Context, _ *runtimeapi.StatusRequest, _ ...grpc.CallOption) (*runtimeapi.StatusResponse, error) {
	if err := r.enter(ctx, "Status"); err != nil {
		return nil, err
	}
	return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true}, {Type: runtimeapi.NetworkReady, Status: true},
	}}}, nil
}

// ReopenContainerLog implements the CRI. Containers here write no logs.
func (r *Runtime) ReopenContainerLog(ctx context.Context, _ *runtimeapi.ReopenContainerLogRequest, _ ...grpc.CallOption,
) (*runtimeapi.ReopenContainerLogResponse, error) {
	if err := r.enter(ctx, "ReopenContainerLog"); err != nil {
		return nil, err
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}
