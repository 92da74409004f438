//go:build integration

package containerd_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestTasksOfEndedContainers gives a container that has ended a task, as a start whose caller goes away leaves one to a
// container whose start has failed. CRI does not remove it with the task; without the task it does. The task of a
// container that runs is left.
func TestTasksOfEndedContainers(t *testing.T) {
	n := newFixture(t)
	n.start(t)
	n.importImages(t)
	logs, data := t.TempDir(), volume(t)
	lives, ended := n.run(t, n.sandbox("lives", logs, false), data), n.run(t, n.sandbox("ended", logs, true), data)
	_, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: ended.container})
	require.NoError(t, err)
	deleted, err := n.DeleteOrphanTasks(t.Context())
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

	deleted, err = n.DeleteOrphanTasks(t.Context())
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
	n.requireNothingLeft(t)
	n.clean(t)
}

// TestSandboxesThatOnlyContainerdHas makes the container and the task of a sandbox that CRI does not know, as a start
// leaves them whose caller goes away. They are deleted; sandboxes that run, or were stopped, are left.
func TestSandboxesThatOnlyContainerdHas(t *testing.T) {
	n := newFixture(t)
	n.start(t)
	n.importImages(t)
	logs := t.TempDir()
	lives, stopped := n.run(t, n.sandbox("lives", logs, false), volume(t)), n.run(t, n.sandbox("stopped", logs, false), volume(t))
	_, err := n.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: stopped.sandbox})
	require.NoError(t, err)
	direct, err := client.New(n.Socket(), client.WithDefaultNamespace("k8s.io"))
	require.NoError(t, err)
	defer direct.Close()
	orphan := strings.Repeat("0", 64)
	n.copySandbox(t, direct, lives.sandbox, orphan)
	ended, err := n.KillOrphanShims(t.Context())
	require.NoError(t, err)
	require.Empty(t, ended, "it has a bundle")

	deleted, err := n.DeleteOrphanSandboxes(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{orphan}, deleted)
	_, err = direct.LoadContainer(t.Context(), orphan)
	require.True(t, errdefs.IsNotFound(err), "%v", err)
	again, err := n.DeleteOrphanSandboxes(t.Context())
	require.NoError(t, err)
	require.Empty(t, again)
	boxes, err := n.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	require.NoError(t, err)
	states := make(map[string]runtimeapi.PodSandboxState)
	for _, box := range boxes.Items {
		states[box.Id] = box.State
	}
	require.Equal(t, map[string]runtimeapi.PodSandboxState{
		lives.sandbox: runtimeapi.PodSandboxState_SANDBOX_READY, stopped.sandbox: runtimeapi.PodSandboxState_SANDBOX_NOTREADY,
	}, states)
	for _, p := range []pod{lives, stopped} {
		n.end(t, p)
	}
	n.stop(t)
	n.requireNothingLeft(t)
	n.clean(t)
}

// copySandbox makes the container of a sandbox like another's, and a task that is not started.
func (n *fixture) copySandbox(t testing.TB, direct *client.Client, from, id string) {
	box, err := direct.LoadContainer(t.Context(), from)
	require.NoError(t, err)
	info, err := box.Info(t.Context())
	require.NoError(t, err)
	spec, err := box.Spec(t.Context())
	require.NoError(t, err)
	spec.Linux.CgroupsPath = n.cgroup + "/" + id
	spec.Annotations["io.kubernetes.cri.sandbox-id"] = id
	image, err := direct.GetImage(t.Context(), info.Image)
	require.NoError(t, err)
	made, err := direct.NewContainer(t.Context(), id, client.WithSnapshotter(info.Snapshotter), client.WithNewSnapshot(id, image),
		client.WithSpec(spec), client.WithContainerLabels(info.Labels), client.WithRuntime(info.Runtime.Name, info.Runtime.Options))
	require.NoError(t, err)
	_, err = made.NewTask(t.Context(), cio.NullIO)
	require.NoError(t, err)
}

// TestLooksWhilePodsLive looks for strays without a pause while Pods start, run, stop and go. Nothing is one.
func TestLooksWhilePodsLive(t *testing.T) {
	n := newFixture(t)
	n.start(t)
	n.importImages(t)
	done, looks := make(chan struct{}), 0
	var looking errgroup.Group
	looking.Go(func() error {
		for {
			for _, lookPath := range []func(context.Context) ([]string, error){
				n.KillOrphanShims, n.DeleteOrphanContainers, n.DeleteOrphanTasks, n.DeleteOrphanSandboxes, n.ReleaseAddresses,
			} {
				if found, err := lookPath(t.Context()); err != nil || len(found) > 0 {
					return fmt.Errorf("found %v, error %v", found, err)
				}
			}
			looks++
			select {
			case <-done:
				return nil
			default:
			}
		}
	})
	logs, data := t.TempDir(), volume(t)
	for i := range 5 {
		n.end(t, n.run(t, n.sandbox(fmt.Sprintf("pod%d", i), logs, false), data))
	}
	close(done)
	require.NoError(t, looking.Wait())
	t.Logf("looked %d times", looks)
	n.stop(t)
	n.requireNothingLeft(t)
	n.clean(t)
}
