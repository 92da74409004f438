package task

import (
	"context"
	"fmt"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berth-dev/berth/containers/shim/container"
)

// Checkpoint saves the state of a container that runs or is paused.
func (s *Service) Checkpoint(ctx context.Context, r *api.CheckpointTaskRequest) (*emptypb.Empty, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	var to options.CheckpointOptions
	if r.Options != nil {
		if err := typeurl.UnmarshalTo(r.Options, &to); err != nil {
			return nil, errgrpc.ToGRPC(fmt.Errorf("read the options of a checkpoint of container %s: %w", r.ID, err))
		}
	}
	if status := t.state(t.init); status != tasktypes.Status_RUNNING && status != tasktypes.Status_PAUSED {
		return nil, errgrpc.ToGRPC(fmt.Errorf("checkpoint container %s, which is %s: %w", r.ID, status, errdefs.ErrFailedPrecondition))
	}
	// runc follows links in the container's root on the way to its mounts.
	if err := t.rootfs.during(ctx, t.init.pid, func() error {
		return t.inner.Checkpoint(t.bundle, container.Checkpoint{
			Images: r.Path, Work: to.WorkPath, Parent: to.ParentPath, Exit: to.Exit, OpenTCP: to.OpenTcp,
			ExternalSockets: to.ExternalUnixSockets, Terminal: to.Terminal, FileLocks: to.FileLocks, EmptyNamespaces: to.EmptyNamespaces,
		})
	}); err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("OCI runtime checkpoint failed: %w", err))
	}
	return empty, nil
}
