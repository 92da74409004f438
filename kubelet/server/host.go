package server

import (
	"context"
	"io"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// Host is the node agent as the server sees it. Methods are called concurrently. Pods that are returned belong to
// the callee and are only read.
//
// An error that wraps ErrNotFound becomes status 404, one that carries a gRPC status the matching HTTP status, and
// any other 500.
type Host interface {
	// GetPods returns all Pods of this node.
	GetPods() []*corev1.Pod
	// GetPodByName returns the Pod of that name.
	GetPodByName(namespace, name string) (*corev1.Pod, bool)
	// GetRunningPods asks the runtime which Pods run. Only names, UIDs and containers are filled in.
	GetRunningPods(ctx context.Context) ([]*corev1.Pod, error)

	// ContainerLogs copies the log of a container of the Pod to stdout and stderr until it ends, or, when
	// following, until ctx ends. A container that has no log yet is an error whose text the user will read.
	ContainerLogs(ctx context.Context, pod *corev1.Pod, container string, opts *corev1.PodLogOptions,
		stdout, stderr io.Writer) error

	// GetExec prepares a command in a running container and returns where the runtime serves its streams. Which
	// container ID that is must be asked of the runtime now, not read from a cache: a restart may just have
	// happened.
	GetExec(ctx context.Context, pod *corev1.Pod, container string, cmd []string, opts remotecommand.Options) (
		*url.URL, error)
	// GetAttach is GetExec for the container's own process. Whether there is a terminal is the container's
	// setting, not the caller's wish.
	GetAttach(ctx context.Context, pod *corev1.Pod, container string, opts remotecommand.Options) (*url.URL, error)
	// GetPortForward prepares a port forward to the Pod.
	GetPortForward(ctx context.Context, pod *corev1.Pod, opts portforward.V4Options) (*url.URL, error)
	// Checkpoint writes the state of a running container to an archive, within the timeout if it is above 0, and
	// returns the archive's path.
	Checkpoint(ctx context.Context, pod *corev1.Pod, container string, timeout time.Duration) (string, error)
	// RunInContainer runs a command to its end and returns what it wrote to stdout and stderr.
	RunInContainer(ctx context.Context, pod *corev1.Pod, container string, cmd []string) ([]byte, error)
}
