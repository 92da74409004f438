package housekeeping

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/logs"
)

// LinkLogs returns a runtime that keeps a link to the log of each container, for log collectors, from its creation until
// its removal. A link that fails does not keep a container from running.
func LinkLogs(runtime container.Runtime, links *logs.Links, logger *slog.Logger) container.Runtime {
	return &logLinkingRuntime{runtime, links, logger}
}

type logLinkingRuntime struct {
	container.Runtime
	links  *logs.Links
	logger *slog.Logger
}

// CreateContainer creates the container, then its link.
func (r *logLinkingRuntime) CreateContainer(ctx context.Context, in *runtimeapi.CreateContainerRequest, opts ...grpc.CallOption) (
	*runtimeapi.CreateContainerResponse, error,
) {
	resp, err := r.Runtime.CreateContainer(ctx, in, opts...)
	if err != nil {
		return resp, err
	}
	labels := in.GetConfig().GetLabels()
	if err := r.links.Add(logs.Link{
		Pod: labels[container.PodNameLabel], Namespace: labels[container.PodNamespaceLabel],
		Container: labels[container.ContainerNameLabel], ID: resp.ContainerId,
		Target: filepath.Join(in.GetSandboxConfig().GetLogDirectory(), in.GetConfig().GetLogPath()),
	}); err != nil {
		r.logger.Warn("failed to link a container log", "error", err)
	}
	return resp, nil
}

// RemoveContainer removes the link, then the container.
func (r *logLinkingRuntime) RemoveContainer(ctx context.Context, in *runtimeapi.RemoveContainerRequest, opts ...grpc.CallOption) (
	*runtimeapi.RemoveContainerResponse, error,
) {
	if err := r.links.Remove(in.GetContainerId()); err != nil {
		r.logger.Warn("failed to link a container log", "error", err)
	}
	return r.Runtime.RemoveContainer(ctx, in, opts...)
}

// reconcileLogLinks creates and removes the links that an earlier kubelet was killed before.
func (m *Manager) reconcileLogLinks(ctx context.Context) error {
	if m.deps.Links == nil {
		return nil
	}
	resp, err := m.deps.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return fmt.Errorf("list containers to link their logs: %w", err)
	}
	existing := make([]logs.Link, 0, len(resp.Containers))
	for _, c := range resp.Containers {
		l := logs.Link{
			Pod: c.Labels[container.PodNameLabel], Namespace: c.Labels[container.PodNamespaceLabel],
			Container: c.Labels[container.ContainerNameLabel], ID: c.Id,
		}
		attempt, err := strconv.ParseUint(c.Annotations[container.RestartCountAnnotation], 10, 31)
		if l.Container == "" || err != nil {
			continue // not a container of a Pod
		}
		dir := kuberuntime.PodLogsDir(m.config.PodLogsDir, l.Namespace, l.Pod, types.UID(c.Labels[container.PodUIDLabel]))
		l.Target = filepath.Join(dir, kuberuntime.LogPath(l.Container, uint32(attempt)))
		existing = append(existing, l)
	}
	return m.deps.Links.Reconcile(existing)
}
