package podworker

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/cri"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
)

// actuation is one step towards the allocated resources of a Pod. It runs beside the worker and reads only what it was made
// with.
type actuation struct {
	deps *Deps
	pod  *corev1.Pod
	todo []kuberuntime.Resize
	// unlimit removes the limits of the Pod's cgroup before the containers change, and limit sets them afterwards.
	unlimit, limit bool

	// sandbox are the resources last set on the sandbox; nil if they are not known.
	sandbox   *runtimeapi.LinuxContainerResources
	sandboxID string
	// reached is how far the step has come, and done are the containers that have changed.
	reached cgroupState
	done    []kuberuntime.Resize
}

// run changes the sandbox, the cgroup and the containers. The runtime learns of more resources before the containers get
// them, and of fewer resources after they have lost them, so that a sandbox that is a virtual machine is never too small.
func (a *actuation) run(ctx context.Context) error {
	want, overhead := a.deps.Builder.SandboxResources(a.pod)
	if a.unlimit {
		if err := a.updateSandbox(ctx, larger(a.sandbox, want), overhead); err != nil {
			return err
		}
		if err := a.deps.Builder.ResizePod(ctx, a.pod, false); err != nil {
			return err
		}
		a.reached = cgroupUnlimited
	}
	for _, change := range a.todo {
		_, err := a.deps.Runtime.UpdateContainerResources(uncancelled(ctx), &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: change.Status.ID, Linux: change.Want,
		})
		if ignoreNotFound(err) != nil {
			return fmt.Errorf("change resources of container %q: %w", change.Container.Name, err)
		}
		a.done = append(a.done, change)
	}
	if !a.limit {
		return nil
	}
	if err := a.updateSandbox(ctx, want, overhead); err != nil {
		return err
	}
	if err := a.deps.Builder.ResizePod(ctx, a.pod, true); err != nil {
		return err
	}
	a.reached = cgroupCurrent
	return nil
}

// updateSandbox notifies the runtime of the resources of all containers together, unless it knows them. A runtime that has
// no use for them is not asked again for the same ones.
func (a *actuation) updateSandbox(ctx context.Context, want, overhead *runtimeapi.LinuxContainerResources) error {
	if a.sandboxID == "" || proto.Equal(a.sandbox, want) {
		return nil
	}
	_, err := a.deps.Runtime.UpdatePodSandboxResources(uncancelled(ctx), &runtimeapi.UpdatePodSandboxResourcesRequest{
		PodSandboxId: a.sandboxID, Resources: want, Overhead: overhead,
	})
	if ignoreNotFound(err) != nil && !isUnimplemented(err) {
		return fmt.Errorf("change resources of the sandbox: %w", err)
	}
	a.sandbox = want
	return nil
}

// isUnimplemented reports whether the runtime does not have the call. Some releases of containerd say so in the message
// only.
func isUnimplemented(err error) bool {
	return cri.IsUnimplemented(err) || err != nil && strings.Contains(err.Error(), "not implemented")
}

// larger returns the larger amounts of both; no limit is the largest one. Unknown resources are the smallest ones.
func larger(a, b *runtimeapi.LinuxContainerResources) *runtimeapi.LinuxContainerResources {
	if a == nil {
		return b
	}
	limit := func(x, y int64) int64 {
		if x <= 0 || y <= 0 {
			return min(x, y)
		}
		return max(x, y)
	}
	return &runtimeapi.LinuxContainerResources{
		CpuShares: max(a.CpuShares, b.CpuShares), CpuPeriod: b.CpuPeriod, CpuQuota: limit(a.CpuQuota, b.CpuQuota),
		MemoryLimitInBytes: limit(a.MemoryLimitInBytes, b.MemoryLimitInBytes),
	}
}

// sandboxResources returns the resources last set on the sandbox, nil if they are not known.
func (w *worker) sandboxResources(id string) *runtimeapi.LinuxContainerResources {
	switch id {
	case w.resize.sandboxID:
		return w.resize.sandbox
	case w.sandboxConfigID:
		return w.sandboxConfig.GetLinux().GetResources()
	}
	return nil
}
