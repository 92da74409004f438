package containerd

import (
	"context"
	"errors"
	"fmt"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// DeleteStrayTasks ends and deletes the tasks of containers that containerd's CRI counts as ended, and returns the
// containers' ids. A start whose caller goes away just when the task has been made fails, and leaves the task
// (local.Create in plugins/services/tasks: "failed to get task pid"). From then on CRI refuses to remove the container
// because it has a task, and neither stops nor deletes that task because the container has ended.
//
// Such a task is nobody's: CRI deletes a container's task before it counts the container as ended, and never starts one
// that has ended. A container whose task still does its work is running or unknown to CRI, and is left.
func (c Config) DeleteStrayTasks(ctx context.Context) (deleted []string, err error) {
	conn, err := dial(c.Socket())
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
	client, err := containerd.NewWithConn(conn)
	if err != nil {
		return nil, fmt.Errorf("connect to containerd at %q: %w", c.Socket(), err)
	}
	var errs []error
	for _, container := range ended.Containers {
		if !c.mayHaveBundle(container.Id) {
			continue // nor a task, then
		}
		err := deleteTask(namespaces.WithNamespace(ctx, criNamespace), client, container.Id)
		if errdefs.IsNotFound(err) {
			continue // it goes right now
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("delete the task of container %s, which has ended: %w", container.Id, err))
			continue
		}
		deleted = append(deleted, container.Id)
	}
	return deleted, errors.Join(errs...)
}

// deleteTask kills a container's task, waits for its end and deletes it.
func deleteTask(ctx context.Context, client *containerd.Client, id string) error {
	container, err := client.LoadContainer(ctx, id)
	if err != nil {
		return err
	}
	task, err := container.Task(ctx, nil)
	if err != nil {
		return err
	}
	_, err = task.Delete(ctx, containerd.WithProcessKill)
	return err
}
