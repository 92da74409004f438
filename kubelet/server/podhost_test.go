package server_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/cri/fake"
	"github.com/berth-dev/berth/kubelet/mirror"
	"github.com/berth-dev/berth/kubelet/server"
)

// logRuntime is a runtime whose containers all have the same log.
type logRuntime struct {
	*fake.Runtime
	path string
}

func (r logRuntime) ContainerStatus(context.Context, *runtimeapi.ContainerStatusRequest, ...grpc.CallOption) (*runtimeapi.ContainerStatusResponse, error) {
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{LogPath: r.path}}, nil
}

// writes passes on how much is written.
type writes chan int

func (w writes) Write(p []byte) (int, error) {
	w <- len(p)
	return len(p), nil
}

// TestFollowingASilentContainerBegins: clients wait for the beginning of a response.
func TestFollowingASilentContainerBegins(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "app", ContainerID: "containerd://id", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}
	path := filepath.Join(t.TempDir(), "0.log")
	host := server.NewPodHost(server.PodHostDeps{Runtime: logRuntime{fake.New(clock.RealClock{}), path}, Pods: podSource{pod}, Clock: clock.RealClock{}})
	opts := &corev1.PodLogOptions{Follow: true}
	require.Error(t, host.ContainerLogs(t.Context(), pod, "app", opts, make(writes), nil), "there is no log: nothing is written before the error")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	begun, ended := make(writes), make(chan error)
	go func() { ended <- host.ContainerLogs(ctx, pod, "app", opts, nil, begun) }()
	require.Zero(t, <-begun)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

// podSource has the Pods of a node.
type podSource []*corev1.Pod

func (s podSource) Pods() []*corev1.Pod                   { return append([]*corev1.Pod(nil), s...) }
func (podSource) Ended(types.UID, string) <-chan struct{} { return nil }

// TestStaticPodsAreListedOnce lists a static Pod that has a mirror Pod: there is one Pod, the static one, with its newest
// status, and requests with the UID of its mirror Pod find it.
func TestStaticPodsAreListedOnce(t *testing.T) {
	static := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-n", Namespace: "ns", UID: "static", Annotations: map[string]string{
		config.SourceAnnotation: config.SourceFile, config.HashAnnotation: "hash",
	}}}
	ofAPI := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: "ns", UID: "u"}}
	shown := static.DeepCopy()
	shown.UID, shown.Annotations[corev1.MirrorPodAnnotationKey] = "mirror", "hash"
	mirrors, err := mirror.New(mirror.Deps{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	defer func() { require.NoError(t, mirrors.Start(ctx)) }() // it ends its queue
	mirrors.HandleStatic(config.Change{Op: config.Add, Pod: static})
	mirrors.HandleMirror(config.Change{Op: config.Add, Pod: shown})
	mirrors.Set(static, corev1.PodStatus{Phase: corev1.PodRunning})
	host := server.NewPodHost(server.PodHostDeps{
		Runtime: fake.New(clock.RealClock{}), Pods: podSource{static, ofAPI}, Statuses: mirrors, Clock: clock.RealClock{},
	})

	pods := host.GetPods()
	require.Len(t, pods, 2)
	require.EqualValues(t, "static", pods[0].UID)
	require.Equal(t, corev1.PodRunning, pods[0].Status.Phase)
	require.Equal(t, config.SourceFile, pods[0].Annotations[config.SourceAnnotation])
	require.Empty(t, static.Status.Phase, "the Pods of others are not changed")
	pod, found := host.GetPodByName("ns", "web-n")
	require.True(t, found)
	require.EqualValues(t, "static", pod.UID)
	require.EqualValues(t, "static", host.ResolvePodUID("mirror"))
	require.EqualValues(t, "u", host.ResolvePodUID("u"))
}
