package kubelet

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/cri"
)

// stopSlack is what the runtime may take beyond a container's grace.
const stopSlack = 30 * time.Second

// StopPods takes the node down as a shutdown of the machine would: it stops all Pods, with their own grace but at
// most Config.StopGrace, and takes mounts and control groups down. The API server is told nothing, so that the next
// Start brings the same Pods back with what they have on disk. It is called when Start has returned.
func (k *Kubelet) StopPods(ctx context.Context) error {
	sandboxes, err := k.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("stop pods: list sandboxes: %w", err)
	}
	containers, err := k.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{
			State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		},
	})
	if err != nil {
		return fmt.Errorf("stop pods: list containers: %w", err)
	}
	inside := map[string][]*runtimeapi.Container{}
	for _, c := range containers.Containers {
		inside[c.PodSandboxId] = append(inside[c.PodSandboxId], c)
	}
	errs := make([]error, len(sandboxes.Items))
	var group sync.WaitGroup
	for i, box := range sandboxes.Items {
		group.Go(func() { errs[i] = k.stopPod(ctx, box, inside[box.Id]) })
	}
	group.Wait()
	// What could not be stopped in order is killed with its control group, and let go of its mounts.
	errs = append(errs, k.cgroups.RemoveRoot(ctx), k.volumes.UnmountAll(ctx))
	return errors.Join(errs...)
}

// Close ends the connections to the runtime and to CSI drivers. Nothing may be called afterwards.
func (k *Kubelet) Close() error {
	k.face.life.end()
	k.drivers.Close()
	if k.connection == nil {
		return nil
	}
	return k.connection.Close()
}

// stopPod stops the containers of one sandbox, and then the sandbox.
func (k *Kubelet) stopPod(ctx context.Context, box *runtimeapi.PodSandbox, containers []*runtimeapi.Container) error {
	errs := make([]error, len(containers))
	var group sync.WaitGroup
	for i, c := range containers {
		group.Go(func() {
			grace := k.stopGrace(c)
			ctx, cancel := context.WithTimeout(ctx, time.Duration(grace)*time.Second+stopSlack)
			defer cancel()
			_, err := k.runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: c.Id, Timeout: grace})
			if err != nil && !cri.IsNotFound(err) {
				errs[i] = fmt.Errorf("stop container %q of pod %s/%s: %w", c.GetMetadata().GetName(),
					box.GetMetadata().GetNamespace(), box.GetMetadata().GetName(), err)
			}
		})
	}
	group.Wait()
	_, err := k.runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: box.Id})
	if err != nil && !cri.IsNotFound(err) {
		errs = append(errs, fmt.Errorf("stop sandbox of pod %s/%s: %w", box.GetMetadata().GetNamespace(),
			box.GetMetadata().GetName(), err))
	}
	return errors.Join(errs...)
}

// stopGrace is the container's own grace, at most the configured one, in seconds.
func (k *Kubelet) stopGrace(c *runtimeapi.Container) int64 {
	limit := int64(k.cfg.StopGrace / time.Second)
	own, err := strconv.ParseInt(c.Annotations[container.TerminationGracePeriodAnnotation], 10, 64)
	if err != nil {
		return limit
	}
	return max(1, min(own, limit))
}
