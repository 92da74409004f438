package cri_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
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
	batch   int // how many items a message of a stream has
}

func (l *longLists) annotations() map[string]string {
	return map[string]string{"note": strings.Repeat("x", 256<<10)}
}

func (l *longLists) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return l.sandboxes(), nil
}

func (l *longLists) sandboxes() *runtimeapi.ListPodSandboxResponse {
	out := &runtimeapi.ListPodSandboxResponse{}
	for i := range l.count {
		out.Items = append(out.Items, &runtimeapi.PodSandbox{Id: fmt.Sprint(i), Annotations: l.annotations()})
	}
	return out
}

func (l *longLists) StreamPodSandboxes(in *runtimeapi.StreamPodSandboxesRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse]) error {
	if !l.streams {
		return l.UnimplementedRuntimeServiceServer.StreamPodSandboxes(in, stream)
	}
	all := l.sandboxes().Items
	for _, one := range all {
		one.State = in.Filter.GetState().GetState()
	}
	for batch := range slices.Chunk(all, l.batch) {
		if err := stream.Send(&runtimeapi.StreamPodSandboxesResponse{PodSandboxes: batch}); err != nil {
			return err
		}
	}
	return nil
}

func (l *longLists) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return l.containers(), nil
}

func (l *longLists) containers() *runtimeapi.ListContainersResponse {
	out := &runtimeapi.ListContainersResponse{}
	for i := range l.count {
		out.Containers = append(out.Containers, &runtimeapi.Container{Id: fmt.Sprint(i), Annotations: l.annotations()})
	}
	return out
}

func (l *longLists) StreamContainers(_ *runtimeapi.StreamContainersRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse]) error {
	return stream.Send(&runtimeapi.StreamContainersResponse{Containers: l.containers().Containers[:10]})
}

// TestListsLongerThanAMessage lists Pods with 256 KiB of annotations each: 100 fit into a message of the runtime, 110 do not.
func TestListsLongerThanAMessage(t *testing.T) {
	runtime := &longLists{count: 100, batch: 5000}
	socket := filepath.Join(t.TempDir(), "s")
	defer serveUpTo(t, socket, runtime, 26<<20)()
	client, err := cri.New(cri.Deps{}, cri.Config{Endpoint: socket})
	require.NoError(t, err)
	defer client.Close()
	filter := &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
		State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY},
	}}
	got, err := client.ListPodSandbox(t.Context(), filter)
	require.NoError(t, err)
	require.Len(t, got.Items, 100)

	runtime.count = 110
	_, err = client.ListPodSandbox(t.Context(), filter)
	require.ErrorContains(t, err, "larger than max")
	require.ErrorContains(t, err, "max_send_message_size")

	runtime.streams = true
	_, err = client.ListPodSandbox(t.Context(), filter)
	require.ErrorContains(t, err, "larger than max", "it streams all in one message")
	require.ErrorContains(t, err, "max_send_message_size")
	runtime.batch = 50
	got, err = client.ListPodSandbox(t.Context(), filter)
	require.NoError(t, err)
	require.Len(t, got.Items, 110)
	require.Equal(t, runtimeapi.PodSandboxState_SANDBOX_NOTREADY, got.Items[109].State, "the filter")
	containers, err := client.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	require.NoError(t, err)
	require.Len(t, containers.Containers, 10)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = client.ListPodSandbox(ended, filter)
	require.ErrorIs(t, context.Cause(ended), context.Canceled)
	require.Error(t, err)
}
