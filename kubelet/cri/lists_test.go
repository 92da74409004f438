package cri_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/cri"
)

// longLists is a runtime whose Pods and containers have as many annotations as the API server allows.
type longLists struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	count   int
	streams bool
}

func (l *longLists) annotations() map[string]string {
	return map[string]string{"note": strings.Repeat("x", 256<<10)}
}

func (l *longLists) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	out := &runtimeapi.ListPodSandboxResponse{}
	for i := range l.count {
		out.Items = append(out.Items, &runtimeapi.PodSandbox{Id: fmt.Sprint(i), Annotations: l.annotations()})
	}
	return out, nil
}

func (l *longLists) StreamPodSandboxes(in *runtimeapi.StreamPodSandboxesRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse]) error {
	if !l.streams {
		return l.UnimplementedRuntimeServiceServer.StreamPodSandboxes(in, stream)
	}
	all, _ := l.ListPodSandbox(stream.Context(), nil) // it never fails
	for _, one := range all.Items {
		one.State = in.Filter.GetState().GetState()
		if err := stream.Send(&runtimeapi.StreamPodSandboxesResponse{PodSandboxes: []*runtimeapi.PodSandbox{one}}); err != nil {
			return err
		}
	}
	return nil
}

func (l *longLists) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	out := &runtimeapi.ListContainersResponse{}
	for i := range l.count {
		out.Containers = append(out.Containers, &runtimeapi.Container{Id: fmt.Sprint(i), Annotations: l.annotations()})
	}
	return out, nil
}

func (l *longLists) StreamContainers(_ *runtimeapi.StreamContainersRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse]) error {
	all, _ := l.ListContainers(stream.Context(), nil) // it never fails
	return stream.Send(&runtimeapi.StreamContainersResponse{Containers: all.Containers[:10]})
}

// TestListsLongerThanAMessage lists Pods with 256 KiB of annotations each: 60 fit into a message, 64 do not.
func TestListsLongerThanAMessage(t *testing.T) {
	runtime := &longLists{count: 60}
	socket := filepath.Join(t.TempDir(), "s")
	defer serve(t, socket, runtime)()
	client, err := cri.New(cri.Deps{}, cri.Config{Endpoint: socket})
	require.NoError(t, err)
	defer client.Close()
	filter := &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
		State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY},
	}}
	got, err := client.ListPodSandbox(t.Context(), filter)
	require.NoError(t, err)
	require.Len(t, got.Items, 60)

	runtime.count = 64
	_, err = client.ListPodSandbox(t.Context(), filter)
	require.ErrorContains(t, err, "larger than max")
	require.ErrorContains(t, err, "use containerd 2.4 or newer")

	runtime.streams = true
	got, err = client.ListPodSandbox(t.Context(), filter)
	require.NoError(t, err)
	require.Len(t, got.Items, 64)
	require.Equal(t, runtimeapi.PodSandboxState_SANDBOX_NOTREADY, got.Items[63].State, "the filter")
	containers, err := client.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	require.NoError(t, err)
	require.Len(t, containers.Containers, 10)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = client.ListPodSandbox(ended, filter)
	require.ErrorIs(t, context.Cause(ended), context.Canceled)
	require.Error(t, err)
}
