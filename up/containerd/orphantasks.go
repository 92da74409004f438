package containerd

import (
	"context"
	"errors"
	"fmt"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// DeleteOrphanTasks ends and deletes the tasks of containers that containerd's CRI counts as ended, and returns the
// containers' ids. A start whose caller goes away just when the task has been made fails, and leaves the task
// (local.Create in plugins/services/tasks: "failed to get task pid"). From then on CRI refuses to remove the container
// because it has a task, and neither stops nor deletes that task because the container has ended.
//
// Such a task is nobody's: CRI deletes a container's task before it counts the container as ended, and never starts one
// that has ended. A container whose task still does its work is running or unknown to CRI, and is left.
func (c Config) DeleteOrphanTasks(ctx context.Context) (deleted []string, err error) {
	conn, client, err := c.client()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ended, err := runtimeapi.NewRuntimeServiceClient(conn).ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_EXITED}},
	})
	if err != nil {
		return nil, fmt.Errorf("list the containers that have ended: %w", err)
	}
	ctx = namespaces.WithNamespace(ctx, criNamespace)
	var errs []error
	for _, one := range ended.Containers {
		if !c.mayHaveBundle(one.Id) {
			continue // nor a task, then
		}
		container, err := client.LoadContainer(ctx, one.Id)
		if err == nil {
			err = deleteTask(ctx, container)
		}
		if errdefs.IsNotFound(err) {
			continue // it goes right now
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("delete the task of container %s, which has ended: %w", one.Id, err))
			continue
		}
		deleted = append(deleted, one.Id)
	}
	return deleted, errors.Join(errs...)
}

// DeleteOrphanSandboxes ends and deletes what a sandbox leaves whose start was cut off as that of [Config.DeleteOrphanTasks]
// was, and returns the sandboxes' ids: CRI removes such a sandbox without its container, task and shim.
//
// A sandbox that lives, starts or is being removed is left: containerd notes it before it makes its container, and
// forgets it after it has deleted the container. One that has outlived its notes, by a restart say, CRI lists.
func (c Config) DeleteOrphanSandboxes(ctx context.Context) (deleted []string, err error) {
	conn, client, err := c.client()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	named := namespaces.WithNamespace(ctx, criNamespace)
	containers, err := client.Containers(named, `labels."io.cri-containerd.kind"==sandbox`)
	if err != nil {
		return nil, fmt.Errorf("list the containers of sandboxes: %w", err)
	}
	var errs []error
	for _, container := range containers {
		orphan, err := isOrphanSandbox(named, client, runtimeapi.NewRuntimeServiceClient(conn), container.ID())
		if err == nil && orphan {
			err = deleteTask(named, container)
			if err == nil || errdefs.IsNotFound(err) {
				err = container.Delete(named, containerd.WithSnapshotCleanup)
			}
			if err == nil {
				deleted = append(deleted, container.ID())
			}
		}
		if err != nil && !errdefs.IsNotFound(err) { // what is not found goes right now
			errs = append(errs, fmt.Errorf("delete what is left of sandbox %s: %w", container.ID(), err))
		}
	}
	return deleted, errors.Join(errs...)
}

// isOrphanSandbox says that neither containerd's notes nor CRI know a sandbox, of which there is a container.
func isOrphanSandbox(ctx context.Context, client *containerd.Client, cri runtimeapi.RuntimeServiceClient, id string) (bool, error) {
	if _, err := client.SandboxStore().Get(ctx, id); !errdefs.IsNotFound(err) {
		return false, err
	}
	known, err := cri.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{Id: id}})
	return err == nil && len(known.Items) == 0, err
}

// client connects to containerd's own API; the connection, which also serves CRI, is the caller's to close.
func (c Config) client() (*grpc.ClientConn, *containerd.Client, error) {
	conn, err := dial(c.Socket())
	if err != nil {
		return nil, nil, err
	}
	client, err := containerd.NewWithConn(conn)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("connect to containerd at %q: %w", c.Socket(), err), conn.Close())
	}
	return conn, client, nil
}

// deleteTask kills a container's task, waits for its end and deletes it.
func deleteTask(ctx context.Context, container containerd.Container) error {
	task, err := container.Task(ctx, nil)
	if err != nil {
		return err
	}
	_, err = task.Delete(ctx, containerd.WithProcessKill)
	return err
}
