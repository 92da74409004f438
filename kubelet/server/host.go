package server

import (
	"context"
	"io"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// Host is the kubelet as the server uses it. Methods are called concurrently. Returned Pods must not be modified by the
// server.
//
// An error that wraps ErrNotFound yields status 404, one with a gRPC status the matching HTTP status, and any other
// 500.
type Host interface {
	// GetPods returns all Pods of this node.
	GetPods() []*corev1.Pod
	// GetPodByName returns the Pod of that name.
	GetPodByName(namespace, name string) (*corev1.Pod, bool)
	// ResolvePodUID returns the UID of the Pod that a client means: that of the static Pod for the UID of its mirror Pod, and
	// any other UID unchanged.
	ResolvePodUID(uid types.UID) types.UID
	// GetRunningPods queries the runtime for running Pods. Only names, UIDs and containers are set.
	GetRunningPods(ctx context.Context) ([]*corev1.Pod, error)

	// ContainerLogs copies the log of a container of the Pod to stdout and stderr until it ends, or, when following,
	// until ctx ends. If there is no log yet, it returns an error whose text the user sees.
	ContainerLogs(ctx context.Context, pod *corev1.Pod, container string, opts *corev1.PodLogOptions,
		stdout, stderr io.Writer) error

	// GetExec prepares a command in a running container and returns the URL where the runtime serves its streams. The
	// container ID must be queried from the runtime, not read from a cache: a restart may just have happened.
	GetExec(ctx context.Context, pod *corev1.Pod, container string, cmd []string, opts remotecommand.Options) (
		*url.URL, error)
	// GetAttach is GetExec for the container's own process. Whether there is a terminal depends on the container, not
	// on the caller.
	GetAttach(ctx context.Context, pod *corev1.Pod, container string, opts remotecommand.Options) (*url.URL, error)
	// GetPortForward prepares a port forward to the Pod.
	GetPortForward(ctx context.Context, pod *corev1.Pod, opts portforward.V4Options) (*url.URL, error)
	// Checkpoint writes the state of a running container to an archive, within the timeout if it is positive, and
	// returns the archive's path.
	Checkpoint(ctx context.Context, pod *corev1.Pod, container string, timeout time.Duration) (string, error)
	// RunInContainer runs a command to its end and returns its stdout and stderr.
	RunInContainer(ctx context.Context, pod *corev1.Pod, container string, cmd []string) ([]byte, error)
}
