package starting

import (
	"context"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/container"
)

// Runtime is a container runtime whose starts a Gate counts.
type Runtime struct {
	container.Runtime
	gate *Gate
}

// NewRuntime returns the runtime with the Gate that counts its starts.
func NewRuntime(runtime container.Runtime, gate *Gate) Runtime { return Runtime{runtime, gate} }

// RunPodSandbox creates and starts a sandbox.
func (r Runtime) RunPodSandbox(ctx context.Context, in *runtimeapi.RunPodSandboxRequest, opts ...grpc.CallOption,
) (*runtimeapi.RunPodSandboxResponse, error) {
	r.gate.begin()
	defer r.gate.end()
	return r.Runtime.RunPodSandbox(ctx, in, opts...)
}

// CreateContainer creates a container.
func (r Runtime) CreateContainer(ctx context.Context, in *runtimeapi.CreateContainerRequest, opts ...grpc.CallOption,
) (*runtimeapi.CreateContainerResponse, error) {
	r.gate.begin()
	defer r.gate.end()
	return r.Runtime.CreateContainer(ctx, in, opts...)
}

// StartContainer starts a container.
func (r Runtime) StartContainer(ctx context.Context, in *runtimeapi.StartContainerRequest, opts ...grpc.CallOption,
) (*runtimeapi.StartContainerResponse, error) {
	r.gate.begin()
	defer r.gate.end()
	return r.Runtime.StartContainer(ctx, in, opts...)
}
