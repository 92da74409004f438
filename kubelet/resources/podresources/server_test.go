package podresources_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	alphaapi "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/resources/metrics"
	"github.com/berth-dev/berth/kubelet/resources/podresources"
)

// source has two CPUs for each container.
type source struct{}

func (source) ContainerResources(_ *corev1.Pod, c *corev1.Container) *podresourcesapi.ContainerResources {
	return &podresourcesapi.ContainerResources{Name: c.Name, CpuIds: []int64{2, 3}, Devices: []*podresourcesapi.ContainerDevices{
		{ResourceName: "example.com/gpu", DeviceIds: []string{"0"}},
	}}
}

func (source) AllocatableResources() *podresourcesapi.AllocatableResourcesResponse {
	return &podresourcesapi.AllocatableResourcesResponse{CpuIds: []int64{1, 2, 3}}
}

func TestServer(t *testing.T) {
	root, err := os.MkdirTemp("", "podresources") // t.TempDir may be too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(root)) })
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}, Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "init"}, {Name: "sidecar", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}},
		Containers:     []corev1.Container{{Name: "main"}},
	}}
	server, err := podresources.New(podresources.Deps{
		Source: source{}, Pods: func() []*corev1.Pod { return []*corev1.Pod{pod} }, Ready: closed(), Metrics: metrics.New(),
	}, root)
	require.NoError(t, err)
	running, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Start(running) }()

	conn, err := grpc.NewClient("unix:"+filepath.Join(root, podresources.Dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	client := podresourcesapi.NewPodResourcesListerClient(conn)
	list, err := client.List(ctx, &podresourcesapi.ListPodResourcesRequest{}, grpc.WaitForReady(true))
	require.NoError(t, err)
	require.Len(t, list.PodResources, 1)
	containers := list.PodResources[0].Containers
	require.Len(t, containers, 2, "an init container that has ended has nothing")
	require.Equal(t, "sidecar", containers[0].Name)
	require.Equal(t, []int64{2, 3}, containers[1].CpuIds)
	got, err := client.Get(ctx, &podresourcesapi.GetPodResourcesRequest{PodName: "p", PodNamespace: "ns"})
	require.NoError(t, err)
	require.Equal(t, "p", got.PodResources.Name)
	_, err = client.Get(ctx, &podresourcesapi.GetPodResourcesRequest{PodName: "q", PodNamespace: "ns"})
	require.ErrorContains(t, err, "pod q in namespace ns not found")
	all, err := client.GetAllocatableResources(ctx, &podresourcesapi.AllocatableResourcesRequest{})
	require.NoError(t, err)
	require.Equal(t, []int64{1, 2, 3}, all.CpuIds)
	alpha, err := alphaapi.NewPodResourcesListerClient(conn).List(ctx, &alphaapi.ListPodResourcesRequest{})
	require.NoError(t, err)
	require.Len(t, alpha.PodResources, 1)
	require.Len(t, alpha.PodResources[0].Containers, 1, "without init containers")
	require.Equal(t, "example.com/gpu", alpha.PodResources[0].Containers[0].Devices[0].ResourceName)
	require.Equal(t, []string{"0"}, alpha.PodResources[0].Containers[0].Devices[0].DeviceIds)
	cancel()
	require.NoError(t, <-done)
}

// own has one CPU for each Pod, by its UID.
type own struct{ source }

func (own) ContainerResources(pod *corev1.Pod, c *corev1.Container) *podresourcesapi.ContainerResources {
	return &podresourcesapi.ContainerResources{Name: c.Name, CpuIds: []int64{int64(pod.UID[0])}}
}

// TestGetReturnsTheNewestPod: the Pod before it, of the same name, is still ending.
func TestGetReturnsTheNewestPod(t *testing.T) {
	pod := func(uid types.UID, created time.Time) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: uid, CreationTimestamp: metav1.NewTime(created)},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}},
		}
	}
	older, newer := pod("o", time.Unix(1000, 0)), pod("n", time.Unix(2000, 0))
	for _, pods := range [][]*corev1.Pod{{older, newer}, {newer, older}} {
		server, err := podresources.New(podresources.Deps{
			Source: own{}, Pods: func() []*corev1.Pod { return pods }, Ready: closed(), Metrics: metrics.New(),
		}, t.TempDir())
		require.NoError(t, err)
		got, err := server.Get(t.Context(), &podresourcesapi.GetPodResourcesRequest{PodName: "p", PodNamespace: "ns"})
		require.NoError(t, err)
		require.Equal(t, []int64{'n'}, got.PodResources.Containers[0].CpuIds)
	}
}

func closed() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

// TestRequestsWaitForThePods: right after the kubelet's start it does not know the Pods, whose resources are not free.
func TestRequestsWaitForThePods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var known atomic.Bool
		pods := func() []*corev1.Pod {
			if !known.Load() {
				return nil
			}
			return []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}}}
		}
		ready := make(chan struct{})
		server, err := podresources.New(podresources.Deps{Source: source{}, Pods: pods, Ready: ready, Metrics: metrics.New()}, "/none")
		require.NoError(t, err)
		get := &podresourcesapi.GetPodResourcesRequest{PodName: "p", PodNamespace: "ns"}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = server.Get(short, get)
		require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)

		results := make(chan error, 2)
		go func() { _, err := server.Get(t.Context(), get); results <- err }()
		go func() {
			list, err := server.List(t.Context(), &podresourcesapi.ListPodResourcesRequest{})
			if err == nil && len(list.PodResources) != 1 {
				err = errors.New("it lists no Pods")
			}
			results <- err
		}()
		synctest.Wait()
		require.Empty(t, results)
		known.Store(true)
		close(ready)
		require.NoError(t, <-results)
		require.NoError(t, <-results)
	})
}

// TestRequestsDoNotWaitForEver: static Pods run without an API server, too.
func TestRequestsDoNotWaitForEver(t *testing.T) {
	root, err := os.MkdirTemp("", "podresources")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(root)) })
	server, err := podresources.New(podresources.Deps{
		Source: source{}, Pods: func() []*corev1.Pod { return nil }, Ready: make(chan struct{}), Metrics: metrics.New(),
	}, root)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Start(ctx) }()
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(root, podresources.Dir, "kubelet.sock"))
		return err == nil
	},
		time.Minute, 10*time.Millisecond)
	cancel() // requests wait no longer than the server runs, and then no longer than some seconds
	require.NoError(t, <-done)
	list, err := server.List(t.Context(), &podresourcesapi.ListPodResourcesRequest{})
	require.NoError(t, err)
	require.Empty(t, list.PodResources)
}
