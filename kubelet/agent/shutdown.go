package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StopPods stops all Pods of the runtime as each Pod is stopped when it is deleted, with preStop hooks, the order of
// sidecars and the Pod's grace period, but at most Config.Pods.ShutdownGracePeriod, and critical Pods after all others; then it unmounts
// volumes and removes cgroups. The API server gets no status, so that the next Start runs the same Pods with what they have on disk. It is
// called when Start has returned.
func (a *Agent) StopPods(ctx context.Context) error {
	grace := a.base.config.Pods.ShutdownGracePeriod
	return a.StopPodsWithin(ctx, grace, grace)
}

// StopPodsWithin is StopPods with other limits of grace periods: that of ordinary Pods, and that of critical ones, which end after them.
func (a *Agent) StopPodsWithin(ctx context.Context, ordinary, critical time.Duration) error {
	sandboxes, err := a.runtime.client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("stop Pods: list sandboxes: %w", err)
	}
	uids := sets.New[types.UID]()
	for _, sandbox := range sandboxes.Items {
		uids.Insert(types.UID(sandbox.GetMetadata().GetUid()))
	}
	err = a.pods.workers.StopPods(ctx, sets.List(uids), ordinary, critical)
	// What could not be stopped in order is killed with its cgroup, before its volumes are unmounted.
	return errors.Join(err, a.Cleanup(ctx))
}

// Cleanup kills what still runs in cgroups below Config.Cgroups.Root, removes these cgroups, and unmounts the volumes below
// Config.RootDir. It is called when Start has returned and no Pod of this agent is to run on.
func (a *Agent) Cleanup(ctx context.Context) error {
	return errors.Join(a.node.cgroups.RemoveRoot(ctx), a.storage.volumes.UnmountAll(ctx))
}

// Close ends the connections to the runtime and to CSI drivers. Nothing may be called afterwards.
func (a *Agent) Close() error {
	a.base.cancel()
	a.base.stopTracing(context.Background())
	a.storage.drivers.Close()
	return a.runtime.close()
}
