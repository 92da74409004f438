package server

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

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/logs"
)

// PodSource has the Pods of the node. *podworker.Manager is one.
type PodSource interface {
	// Pods returns all Pods of the node, including those that are terminating.
	Pods() []*corev1.Pod
	// Ended returns a channel that is closed when the container runs no more.
	Ended(uid types.UID, containerID string) <-chan struct{}
}

// StatusSource has the latest statuses of the node's Pods, and knows their mirror Pods. *mirror.Manager is one.
type StatusSource interface {
	Get(uid types.UID) (corev1.PodStatus, bool)
	// StaticUID returns the UID of the static Pod that the mirror Pod with this UID shows, and any other UID unchanged.
	StaticUID(uid types.UID) types.UID
}

// PodHostDeps holds what a PodHost needs; all are required.
type PodHostDeps struct {
	Runtime  container.Runtime
	Pods     PodSource
	Statuses StatusSource
	Clock    clock.PassiveClock
	// CheckpointDir is the directory for archives of containers.
	CheckpointDir string
}

// PodHost is the Host of the node's Pods: containers are looked up in the runtime, Pods among the pod workers.
type PodHost struct {
	*RuntimeHost
	deps PodHostDeps
}

var _ Host = (*PodHost)(nil)

// NewPodHost returns a PodHost.
func NewPodHost(deps PodHostDeps) *PodHost {
	return &PodHost{RuntimeHost: NewRuntimeHost(deps.Runtime), deps: deps}
}

// ResolvePodUID implements Host.
func (h *PodHost) ResolvePodUID(uid types.UID) types.UID { return h.deps.Statuses.StaticUID(uid) }

// GetPods implements Host. A static Pod is listed once, as itself, with the status that its mirror Pod shows.
func (h *PodHost) GetPods() []*corev1.Pod {
	pods := h.deps.Pods.Pods()
	for i, pod := range pods {
		pods[i] = h.withLatestStatus(pod)
	}
	return pods
}

// GetPodByName implements Host.
func (h *PodHost) GetPodByName(namespace, name string) (*corev1.Pod, bool) {
	var found *corev1.Pod
	for _, pod := range h.deps.Pods.Pods() {
		if pod.Namespace != namespace || pod.Name != name {
			continue
		}
		// An old Pod of the same name may still be terminating.
		if found == nil || found.CreationTimestamp.Before(&pod.CreationTimestamp) {
			found = pod
		}
	}
	if found == nil {
		return nil, false
	}
	return h.withLatestStatus(found), true
}

// withLatestStatus returns the Pod with the status that the kubelet knows, which may be newer than the API server's.
func (h *PodHost) withLatestStatus(pod *corev1.Pod) *corev1.Pod {
	s, ok := h.deps.Statuses.Get(pod.UID)
	if !ok {
		return pod
	}
	out := *pod
	out.Status = s
	return &out
}

// ContainerLogs implements Host.
func (h *PodHost) ContainerLogs(ctx context.Context, pod *corev1.Pod, container string, opts *corev1.PodLogOptions,
	stdout, stderr io.Writer,
) error {
	full, err := logs.ContainerIDFor(pod.Name, &pod.Status, container, opts.Previous)
	if err != nil {
		return err
	}
	options, err := logs.FromPodLogOptions(opts, h.deps.Clock.Now())
	if err != nil {
		return err
	}
	_, id, _ := strings.Cut(full, "://")
	if opts.Follow {
		options.Done = h.deps.Pods.Ended(pod.UID, id)
	}
	resp, err := h.deps.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return fmt.Errorf("find log of container %q: %w", container, err)
	}
	if opts.Follow {
		beginResponse(resp.Status.LogPath, stdout, stderr)
	}
	return logs.Read(ctx, resp.Status.LogPath, options, stdout, stderr)
}

// beginResponse writes nothing to the caller of a log that can be read, which begins the response: most clients wait for that before they return
// to the user, and the container may be silent for long.
func beginResponse(path string, outputs ...io.Writer) {
	if _, err := os.Stat(path); err != nil {
		return // the response is an error
	}
	for _, out := range outputs {
		if out != nil {
			_, _ = out.Write(nil) // if it fails, so does the next one
			return
		}
	}
}

// Checkpoint implements Host.
func (h *PodHost) Checkpoint(ctx context.Context, pod *corev1.Pod, container string, timeout time.Duration) (string, error) {
	if err := os.MkdirAll(h.deps.CheckpointDir, 0o700); err != nil {
		return "", fmt.Errorf("create directory of checkpoints: %w", err)
	}
	path := filepath.Join(h.deps.CheckpointDir, fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", pod.Name, pod.Namespace, container,
		h.deps.Clock.Now().UTC().Format(time.RFC3339)))
	return path, h.CheckpointTo(ctx, pod, container, path, timeout)
}
