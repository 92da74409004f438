package kubelet

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/logs"
)

// linked is a runtime each of whose containers has a link to its log, for collectors of logs, from when it is made until
// it is removed. A link that fails stops no container.
type linked struct {
	Runtime
	links  *logs.Links
	failed func(error)
}

// CreateContainer makes the container, then its link.
func (r *linked) CreateContainer(ctx context.Context, in *runtimeapi.CreateContainerRequest, opts ...grpc.CallOption) (
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
		r.failed(err)
	}
	return resp, nil
}

// RemoveContainer removes the link, then the container.
func (r *linked) RemoveContainer(ctx context.Context, in *runtimeapi.RemoveContainerRequest, opts ...grpc.CallOption) (
	*runtimeapi.RemoveContainerResponse, error,
) {
	if err := r.links.Remove(in.GetContainerId()); err != nil {
		r.failed(err)
	}
	return r.Runtime.RemoveContainer(ctx, in, opts...)
}

// settleLinks makes and removes what a process that was killed owed.
func (k *Kubelet) settleLinks(ctx context.Context) error {
	if k.links == nil {
		return nil
	}
	resp, err := k.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return fmt.Errorf("list containers to link their logs: %w", err)
	}
	held := make([]logs.Link, 0, len(resp.Containers))
	for _, c := range resp.Containers {
		l := logs.Link{
			Pod: c.Labels[container.PodNameLabel], Namespace: c.Labels[container.PodNamespaceLabel],
			Container: c.Labels[container.ContainerNameLabel], ID: c.Id,
		}
		attempt, err := strconv.ParseUint(c.Annotations[container.RestartCountAnnotation], 10, 31)
		if l.Container == "" || err != nil {
			continue // not ours
		}
		dir := kuberuntime.PodLogsDir(k.cfg.PodLogsDir, l.Namespace, l.Pod, types.UID(c.Labels[container.PodUIDLabel]))
		l.Target = filepath.Join(dir, kuberuntime.LogPath(l.Container, uint32(attempt)))
		held = append(held, l)
	}
	return k.links.Reconcile(held)
}
