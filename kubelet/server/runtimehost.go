package server

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/berth-dev/berth/internal/podutil"
)

// RuntimeClient is the part of the CRI that a RuntimeHost uses.
type RuntimeClient interface {
	ListContainers(ctx context.Context, req *runtimeapi.ListContainersRequest, opts ...grpc.CallOption) (
		*runtimeapi.ListContainersResponse, error)
	ListPodSandbox(ctx context.Context, req *runtimeapi.ListPodSandboxRequest, opts ...grpc.CallOption) (
		*runtimeapi.ListPodSandboxResponse, error)
	ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest, opts ...grpc.CallOption) (
		*runtimeapi.ExecSyncResponse, error)
	Exec(ctx context.Context, req *runtimeapi.ExecRequest, opts ...grpc.CallOption) (*runtimeapi.ExecResponse, error)
	Attach(ctx context.Context, req *runtimeapi.AttachRequest, opts ...grpc.CallOption) (
		*runtimeapi.AttachResponse, error)
	PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest, opts ...grpc.CallOption) (
		*runtimeapi.PortForwardResponse, error)
	CheckpointContainer(ctx context.Context, req *runtimeapi.CheckpointContainerRequest, opts ...grpc.CallOption) (
		*runtimeapi.CheckpointContainerResponse, error)
}

// RuntimeHost implements the methods of Host that need only the container runtime: running containers and their
// streams. It has no state; each call queries the runtime. It is safe for concurrent use.
type RuntimeHost struct {
	runtime RuntimeClient
}

// NewRuntimeHost returns a RuntimeHost.
func NewRuntimeHost(runtime RuntimeClient) *RuntimeHost { return &RuntimeHost{runtime: runtime} }

// ContainerID returns the ID of the running container of that name in the Pod, the newest one if there are several. The
// error wraps ErrNotFound if none runs.
func (h *RuntimeHost) ContainerID(ctx context.Context, pod *corev1.Pod, container string) (string, error) {
	response, err := h.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		LabelSelector: map[string]string{
			kubelettypes.KubernetesPodUIDLabel:        string(pod.UID),
			kubelettypes.KubernetesContainerNameLabel: container,
		},
	}})
	if err != nil {
		return "", fmt.Errorf("find container %q of Pod %q: %w", container, pod.Namespace+"/"+pod.Name, err)
	}
	if len(response.Containers) == 0 {
		return "", fmt.Errorf("container %q of Pod %q: %w: it is not running", container,
			pod.Namespace+"/"+pod.Name, ErrNotFound)
	}
	return slices.MaxFunc(response.Containers, func(a, b *runtimeapi.Container) int {
		return cmp.Compare(a.CreatedAt, b.CreatedAt)
	}).Id, nil
}

// SandboxID returns the ID of the Pod's ready sandbox. The error wraps ErrNotFound if there is none.
func (h *RuntimeHost) SandboxID(ctx context.Context, pod *corev1.Pod) (string, error) {
	response, err := h.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
		State:         &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
		LabelSelector: map[string]string{kubelettypes.KubernetesPodUIDLabel: string(pod.UID)},
	}})
	if err != nil {
		return "", fmt.Errorf("find sandbox of Pod %q: %w", pod.Namespace+"/"+pod.Name, err)
	}
	if len(response.Items) == 0 {
		return "", fmt.Errorf("sandbox of Pod %q: %w: none is ready", pod.Namespace+"/"+pod.Name, ErrNotFound)
	}
	return slices.MaxFunc(response.Items, func(a, b *runtimeapi.PodSandbox) int {
		return cmp.Compare(a.CreatedAt, b.CreatedAt)
	}).Id, nil
}

// GetExec implements Host.
func (h *RuntimeHost) GetExec(
	ctx context.Context, pod *corev1.Pod, container string, cmd []string, opts remotecommand.Options,
) (*url.URL, error) {
	id, err := h.ContainerID(ctx, pod, container)
	if err != nil {
		return nil, err
	}
	response, err := h.runtime.Exec(ctx, &runtimeapi.ExecRequest{
		ContainerId: id, Cmd: cmd, Tty: opts.TTY, Stdin: opts.Stdin, Stdout: opts.Stdout, Stderr: opts.Stderr,
	})
	if err != nil {
		return nil, fmt.Errorf("prepare exec in container %q: %w", container, err)
	}
	return parseURL(response.Url)
}

// GetAttach implements Host. Whether there is a terminal depends on the container's spec.
func (h *RuntimeHost) GetAttach(
	ctx context.Context, pod *corev1.Pod, container string, opts remotecommand.Options,
) (*url.URL, error) {
	id, err := h.ContainerID(ctx, pod, container)
	if err != nil {
		return nil, err
	}
	tty := hasTTY(pod, container)
	response, err := h.runtime.Attach(ctx, &runtimeapi.AttachRequest{
		ContainerId: id, Tty: tty, Stdin: opts.Stdin, Stdout: opts.Stdout,
		Stderr: opts.Stderr && !tty, // a terminal has one output, and the runtime rejects a request for two
	})
	if err != nil {
		return nil, fmt.Errorf("prepare attach to container %q: %w", container, err)
	}
	return parseURL(response.Url)
}

// GetPortForward implements Host.
func (h *RuntimeHost) GetPortForward(
	ctx context.Context, pod *corev1.Pod, opts portforward.V4Options,
) (*url.URL, error) {
	id, err := h.SandboxID(ctx, pod)
	if err != nil {
		return nil, err
	}
	response, err := h.runtime.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: id, Port: opts.Ports})
	if err != nil {
		return nil, fmt.Errorf("prepare port forward to Pod %q: %w", pod.Namespace+"/"+pod.Name, err)
	}
	return parseURL(response.Url)
}

// RunInContainer implements Host. A command that fails yields an error beside its output.
func (h *RuntimeHost) RunInContainer(
	ctx context.Context, pod *corev1.Pod, container string, cmd []string,
) ([]byte, error) {
	id, err := h.ContainerID(ctx, pod, container)
	if err != nil {
		return nil, err
	}
	response, err := h.runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: cmd})
	if err != nil {
		return nil, fmt.Errorf("run command in container %q: %w", container, err)
	}
	output := slices.Concat(response.Stdout, response.Stderr)
	if response.ExitCode != 0 {
		return output, fmt.Errorf("command in container %q exited with %d: %s", container, response.ExitCode, output)
	}
	return output, nil
}

// CheckpointTo writes the state of a running container to an archive, within the timeout if it is positive.
func (h *RuntimeHost) CheckpointTo(
	ctx context.Context, pod *corev1.Pod, container, path string, timeout time.Duration,
) error {
	id, err := h.ContainerID(ctx, pod, container)
	if err != nil {
		return err
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	_, err = h.runtime.CheckpointContainer(ctx, &runtimeapi.CheckpointContainerRequest{
		ContainerId: id, Location: path, Timeout: int64(timeout / time.Second),
	})
	if err != nil {
		help := ""
		if strings.Contains(strings.ToLower(err.Error()), "criu") {
			help = "; install criu in the runtime's PATH"
		}
		// Clients of upstream's kubelet look for the runtime's error in parentheses.
		return fmt.Errorf("checkpoint container %q of Pod %q (%w)%s", container, pod.Namespace+"/"+pod.Name, err, help)
	}
	return nil
}

// GetRunningPods implements Host.
func (h *RuntimeHost) GetRunningPods(ctx context.Context) ([]*corev1.Pod, error) {
	response, err := h.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return nil, fmt.Errorf("list running containers: %w", err)
	}
	pods := make(map[types.UID]*corev1.Pod)
	for _, container := range response.Containers {
		uid := types.UID(container.Labels[kubelettypes.KubernetesPodUIDLabel])
		if uid == "" {
			continue // not a Kubernetes container
		}
		pod := pods[uid]
		if pod == nil {
			pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				UID:       uid,
				Name:      container.Labels[kubelettypes.KubernetesPodNameLabel],
				Namespace: container.Labels[kubelettypes.KubernetesPodNamespaceLabel],
			}}
			pods[uid] = pod
		}
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name:  container.Labels[kubelettypes.KubernetesContainerNameLabel],
			Image: cmp.Or(container.GetImage().GetUserSpecifiedImage(), container.GetImage().GetImage()),
		})
	}
	list := make([]*corev1.Pod, 0, len(pods))
	for _, pod := range pods {
		slices.SortFunc(pod.Spec.Containers, func(a, b corev1.Container) int { return cmp.Compare(a.Name, b.Name) })
		list = append(list, pod)
	}
	slices.SortFunc(list, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return list, nil
}

// hasTTY reports whether the container's spec asks for a terminal.
func hasTTY(pod *corev1.Pod, name string) bool {
	container, _ := podutil.FindContainer(&pod.Spec, name)
	return container != nil && container.TTY
}

func parseURL(text string) (*url.URL, error) {
	location, err := url.Parse(text)
	if err != nil || location.Host == "" {
		return nil, fmt.Errorf("the container runtime returned %q as the URL of a stream: want a URL with a host", text)
	}
	return location, nil
}
