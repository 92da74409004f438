package status_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/status"
)

// TestTerminationMessagesShareALimit has a Pod of many containers, whose object would not fit into the API server's store with all of each.
func TestTerminationMessagesShareALimit(t *testing.T) {
	const kib = 1 << 10
	long := strings.Repeat("é", 2*kib)
	for _, c := range []struct{ containers, want int }{{1, 4 * kib}, {3, 4 * kib}, {6, 2 * kib}, {100, 122}} {
		p, all := pod(corev1.RestartPolicyNever), held()
		in := status.Input{Pod: p, Runtime: all, Messages: map[string]string{}, Ended: true, Now: now}
		for i := range c.containers {
			name := "c" + strings.Repeat("x", i)
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name})
			before, last := exited(name, 1, 0), exited(name, 1, 1)
			before.ID = name + "-before"
			all.Containers = append(all.Containers, last, before)
			in.Messages[last.ID], in.Messages[before.ID] = long, long
		}
		for _, s := range status.Compute(in).ContainerStatuses {
			for _, end := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
				require.Len(t, end.Message, c.want)
				require.True(t, utf8.ValidString(end.Message))
			}
		}
	}
	p := withInit(pod(corev1.RestartPolicyNever, "a", "b"), false, "i")
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}}
	in := status.Input{Pod: p, Runtime: held(exited("debug", 1, 0)), Messages: map[string]string{"debug-id": long}, Now: now}
	require.Len(t, status.Compute(in).EphemeralContainerStatuses[0].State.Terminated.Message, 3*kib)
}

// Users, quotas and monitoring read an ended container's status also after the runtime has removed it.
func TestStatusOfARemovedContainerStays(t *testing.T) {
	p := withInit(pod(corev1.RestartPolicyAlways, "a"), false, "i")
	p.Spec.InitContainers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	ended := exited("i", 0, 0)
	ended.Image, ended.ImageRef = "registry.example/i:1", "registry.example/i@sha256:1"
	in := status.Input{Pod: p, Runtime: held(running("a", 0), ended), RuntimeName: "containerd", Now: now}
	in.Old = status.Compute(in)
	in.Runtime = held(running("a", 0))
	require.Equal(t, in.Old.InitContainerStatuses, status.Compute(in).InitContainerStatuses)
}

// A runtime that has lost its data, and the Pod's logs with it, counts from 0.
func TestRestartCountDoesNotGoBack(t *testing.T) {
	in := status.Input{Pod: pod(corev1.RestartPolicyAlways, "a"), Runtime: held(running("a", 5)), Now: now}
	in.Old = status.Compute(in)
	end := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 7}}
	in.Old.ContainerStatuses[0].LastTerminationState = end
	in.Runtime = &container.PodStatus{Containers: []*container.ContainerStatus{running("a", 0)}}
	got := status.Compute(in).ContainerStatuses[0]
	require.Equal(t, int32(5), got.RestartCount)
	require.Equal(t, end, got.LastTerminationState)
}

// A Pod is deleted while the image of its sidecar cannot be pulled.
func TestContainerBehindASidecarThatNeverStarted(t *testing.T) {
	in := status.Input{Pod: withInit(pod(corev1.RestartPolicyAlways, "a"), true, "i"), Runtime: held(), Ended: true, Now: now}
	got := status.Compute(in)
	require.Equal(t, corev1.PodFailed, got.Phase)
	require.NotNil(t, got.ContainerStatuses[0].State.Waiting, "its turn had not come")
	in.Runtime = held(exited("i", 0, 0))
	require.NotNil(t, status.Compute(in).ContainerStatuses[0].State.Terminated)
}
