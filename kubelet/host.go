package kubelet

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/logs"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/server"
)

// host is the node agent as its server sees it: the runtime answers what only it can know.
type host struct {
	*server.RuntimeHost
	runtime  Runtime
	workers  *podworker.Manager
	statuses interface {
		Get(uid types.UID) (corev1.PodStatus, bool)
	}
	clock clock.PassiveClock
	// checkpoints is the directory for archives of containers.
	checkpoints string
}

var _ server.Host = (*host)(nil)

// GetPods implements server.Host.
func (h *host) GetPods() []*corev1.Pod {
	pods := h.workers.Pods()
	for i, pod := range pods {
		pods[i] = h.current(pod)
	}
	return pods
}

// GetPodByName implements server.Host.
func (h *host) GetPodByName(namespace, name string) (*corev1.Pod, bool) {
	var found *corev1.Pod
	for _, pod := range h.workers.Pods() {
		if pod.Namespace != namespace || pod.Name != name {
			continue
		}
		// An old Pod of the name may still be ending beside the new one.
		if found == nil || found.CreationTimestamp.Before(&pod.CreationTimestamp) {
			found = pod
		}
	}
	if found == nil {
		return nil, false
	}
	return h.current(found), true
}

// current is the Pod with the status that the node agent knows, which may be newer than the API server's.
func (h *host) current(pod *corev1.Pod) *corev1.Pod {
	s, ok := h.statuses.Get(pod.UID)
	if !ok {
		return pod
	}
	out := *pod
	out.Status = s
	return &out
}

// ContainerLogs implements server.Host.
func (h *host) ContainerLogs(ctx context.Context, pod *corev1.Pod, container string, opts *corev1.PodLogOptions,
	stdout, stderr io.Writer,
) error {
	full, err := logs.ContainerIDFor(pod.Name, &pod.Status, container, opts.Previous)
	if err != nil {
		return err
	}
	options, err := logs.FromPodLogOptions(opts, h.clock.Now())
	if err != nil {
		return err
	}
	_, id, _ := strings.Cut(full, "://")
	if opts.Follow {
		options.Done = h.workers.Ended(pod.UID, id)
	}
	resp, err := h.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return fmt.Errorf("find log of container %q: %w", container, err)
	}
	return logs.Read(ctx, resp.Status.LogPath, options, stdout, stderr)
}

// Checkpoint implements server.Host.
func (h *host) Checkpoint(ctx context.Context, pod *corev1.Pod, container string, timeout time.Duration) (string, error) {
	if err := os.MkdirAll(h.checkpoints, 0o700); err != nil {
		return "", fmt.Errorf("make directory of checkpoints: %w", err)
	}
	path := filepath.Join(h.checkpoints, fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", pod.Name, pod.Namespace, container,
		h.clock.Now().UTC().Format(time.RFC3339)))
	return path, h.CheckpointTo(ctx, pod, container, path, timeout)
}
