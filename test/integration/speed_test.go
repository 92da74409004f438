//go:build integration

package integration

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

// BenchmarkPodStart measures a hostNetwork Pod with an emptyDir from its creation until a watch shows it Ready,
// and alternately, on the same containerd, the baseline: the same sandbox and container by direct CRI calls. It
// reports the medians and their ratio.
//
//	go test -tags integration -run '^$' -bench PodStart -benchtime 30x ./test/integration
func BenchmarkPodStart(b *testing.B) {
	c := newCluster(b)
	c.up()
	client := c.client()
	cri := dialCRI(b, filepath.Join(c.runDir(), "containerd.sock"))
	// The first of each is slower because of page cache and first connections.
	startPod(b, client, "warm")
	baselineStart(b, cri, "warm")

	var pods, gone, baselines, baselineStops []time.Duration
	for i := 0; b.Loop(); i++ {
		started, deleted := startPod(b, client, fmt.Sprintf("pod-%d", i))
		pods, gone = append(pods, started), append(gone, deleted)
		up, down := baselineStart(b, cri, fmt.Sprintf("baseline-%d", i))
		baselines, baselineStops = append(baselines, up), append(baselineStops, down)
	}
	b.ReportMetric(ms(median(pods)), "pod-ready-ms")
	b.ReportMetric(ms(median(baselines)), "cri-baseline-ms")
	b.ReportMetric(float64(median(pods))/float64(median(baselines)), "ready/baseline")
	b.ReportMetric(ms(median(gone)), "pod-gone-ms")
	b.ReportMetric(ms(median(baselineStops)), "cri-stop-ms")
	b.ReportMetric(float64(median(gone))/float64(median(baselineStops)), "gone/baseline")
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// startPod creates a Pod, waits until a watch shows it Ready, deletes it and waits until it is gone.
func startPod(b *testing.B, client kubernetes.Interface, name string) (ready, gone time.Duration) {
	b.Helper()
	pods := client.CoreV1().Pods("default")
	watcher, err := pods.Watch(b.Context(), metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	require.NoError(b, err)
	defer watcher.Stop()
	began := time.Now()
	_, err = pods.Create(b.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			HostNetwork:                   true,
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			AutomountServiceAccountToken:  ptr.To(false),
			Containers: []corev1.Container{{Name: "main", Image: "berth.local/pause:v1",
				VolumeMounts: []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}}}},
			Volumes: []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}, metav1.CreateOptions{})
	require.NoError(b, err)
	for event := range watcher.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		require.True(b, ok, "the watch of pod %s broke: %v", name, event.Object)
		switch {
		case event.Type == watch.Deleted:
			return ready, time.Since(began)
		case ready == 0 && readyCondition(pod):
			ready = time.Since(began)
			began = time.Now()
			require.NoError(b, pods.Delete(b.Context(), name, metav1.DeleteOptions{}))
		}
	}
	b.Fatalf("the watch of pod %s ended", name)
	return 0, 0
}

func readyCondition(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func dialCRI(b *testing.B, socket string) runtimeapi.RuntimeServiceClient {
	b.Helper()
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, connection.Close()) })
	return runtimeapi.NewRuntimeServiceClient(connection)
}

// baselineStart starts and stops the same Pod by direct CRI calls, and returns both durations.
func baselineStart(b *testing.B, cri runtimeapi.RuntimeServiceClient, name string) (up, down time.Duration) {
	b.Helper()
	ctx := context.WithoutCancel(b.Context())
	dir := b.TempDir()
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "baseline", Uid: name},
		LogDirectory: dir,
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE}}},
	}
	began := time.Now()
	made, err := cri.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: sandbox})
	require.NoError(b, err)
	container, err := cri.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: made.PodSandboxId, SandboxConfig: sandbox,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
			Image:    &runtimeapi.ImageSpec{Image: "berth.local/pause:v1"},
			LogPath:  "main.log",
			Mounts:   []*runtimeapi.Mount{{ContainerPath: "/scratch", HostPath: dir}},
			Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE}}},
		},
	})
	require.NoError(b, err)
	_, err = cri.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: container.ContainerId})
	require.NoError(b, err)
	up = time.Since(began)

	began = time.Now()
	_, err = cri.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: container.ContainerId, Timeout: 1})
	require.NoError(b, err)
	_, err = cri.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: made.PodSandboxId})
	require.NoError(b, err)
	_, err = cri.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: made.PodSandboxId})
	require.NoError(b, err)
	return up, time.Since(began)
}
