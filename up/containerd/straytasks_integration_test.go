//go:build integration

package containerd_test

import (
	"testing"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestTasksOfEndedContainers gives a container that has ended a task, as a start whose caller goes away leaves one to a
// container whose start has failed. CRI does not remove it with the task; without the task it does. The task of a
// container that runs is left.
func TestTasksOfEndedContainers(t *testing.T) {
	n := newNode(t, 14)
	n.start(t)
	n.images(t)
	logs, data := t.TempDir(), volume(t)
	lives, ended := n.run(t, n.sandbox("lives", logs, false), data), n.run(t, n.sandbox("ended", logs, true), data)
	_, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: ended.container})
	require.NoError(t, err)
	deleted, err := n.DeleteStrayTasks(t.Context())
	require.NoError(t, err)
	require.Empty(t, deleted, "CRI has deleted the task itself")

	direct, err := client.New(n.Socket(), client.WithDefaultNamespace("k8s.io"))
	require.NoError(t, err)
	defer direct.Close()
	container, err := direct.LoadContainer(t.Context(), ended.container)
	require.NoError(t, err)
	_, err = container.NewTask(t.Context(), cio.NullIO)
	require.NoError(t, err)
	remove := func() error {
		_, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: ended.container})
		return err
	}
	err = remove()
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "containerd deletes it now: DeleteStrayTasks may be needless: %v", err)

	deleted, err = n.DeleteStrayTasks(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{ended.container}, deleted)
	require.NoError(t, remove())
	answer, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: lives.container})
	require.NoError(t, err)
	require.Equal(t, runtimeapi.ContainerState_CONTAINER_RUNNING, answer.Status.State)
	for _, p := range []pod{lives, ended} {
		n.end(t, p)
	}
	n.stop(t)
	require.Empty(t, n.leftovers(t))
	n.clean(t)
}
