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

// DeleteOrphanTasks kills and deletes the tasks of containers that have exited according to containerd's CRI, and returns
// the containers' ids. A start whose caller disconnects just after the task was created fails, and leaves the task
// (local.Create in plugins/services/tasks: "failed to get task pid"). From then on CRI refuses to remove the container
// because it has a task, and neither stops nor deletes that task because the container has exited.
//
// Such a task is always an orphan: CRI deletes a container's task before it marks the container as exited, and never
// starts an exited container. A container whose task is in use is running or unknown according to CRI, and stays.
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
			continue // without a bundle there is no task
		}
		container, err := client.LoadContainer(ctx, one.Id)
		if err == nil {
			err = deleteTask(ctx, container)
		}
		if errdefs.IsNotFound(err) {
			continue // it has just been removed
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("delete the task of container %s, which has ended: %w", one.Id, err))
			continue
		}
		deleted = append(deleted, one.Id)
	}
	return deleted, errors.Join(errs...)
}

// DeleteOrphanSandboxes kills and deletes the containers, tasks and shims of sandboxes whose start was interrupted as
// described at [Config.DeleteOrphanTasks], and returns the sandboxes' ids: CRI removes such a sandbox without them.
//
// A sandbox that runs, starts or is being removed stays: containerd stores it before it creates its container, and
// removes it from the store after it has deleted the container. CRI lists the sandboxes that are not in the store, as
// after a restart.
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
	known, err := c.sandboxIDs(ctx) // after the containers: a sandbox that is not known now has no new container
	if err != nil {
		return nil, fmt.Errorf("find what is left of sandboxes: %w", err)
	}
	var errs []error
	for _, container := range containers {
		if known[container.ID()] {
			continue
		}
		err := deleteTask(named, container)
		if err == nil || errdefs.IsNotFound(err) {
			err = container.Delete(named, containerd.WithSnapshotCleanup)
		}
		if err == nil {
			deleted = append(deleted, container.ID())
		}
		if err != nil && !errdefs.IsNotFound(err) { // not found: it has just been removed
			errs = append(errs, fmt.Errorf("delete what is left of sandbox %s: %w", container.ID(), err))
		}
	}
	return deleted, errors.Join(errs...)
}

// sandboxIDs returns the ids of all sandboxes that containerd's store or CRI has.
func (c Config) sandboxIDs(ctx context.Context) (map[string]bool, error) {
	conn, client, err := c.client()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ids := make(map[string]bool)
	stored, err := client.SandboxStore().List(namespaces.WithNamespace(ctx, criNamespace))
	if err != nil {
		return nil, fmt.Errorf("list containerd's sandboxes: %w", err)
	}
	for _, box := range stored {
		ids[box.ID] = true
	}
	listed, err := runtimeapi.NewRuntimeServiceClient(conn).ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list the sandboxes: %w", err)
	}
	for _, box := range listed.Items {
		ids[box.Id] = true
	}
	return ids, nil
}

// client connects to containerd's own API. The caller closes the connection, which also serves CRI.
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
