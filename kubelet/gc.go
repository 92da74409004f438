package kubelet

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/kubelet/images"
	"github.com/berth-dev/berth/kubelet/node"
)

// StartGarbageCollection starts the garbage collection of containers and images, until the Kubelet ends. It returns at
// once.
func (k *Kubelet) StartGarbageCollection() {
	go contain.Loop(k.ctx, "kubelet.collectContainers", "", func(context.Context) { k.collectContainersPeriodically() })()
	collector, err := k.parts.Housekeeping.NewImageCollector(images.CollectorConfig{
		High: int(*k.configuration.ImageGCHighThresholdPercent), Low: int(*k.configuration.ImageGCLowThresholdPercent),
		MinAge: k.configuration.ImageMinimumGCAge.Duration, Period: ImageGCPeriod,
	})
	if err != nil {
		k.deps.Logger.Error("failed to start image garbage collection", "error", err)
		return
	}
	go func() {
		defer contain.Recover("kubelet.StartGarbageCollection", "")
		if err := collector.Start(k.ctx); err != nil {
			k.deps.Logger.Error("image garbage collection has ended", "error", err)
		}
	}()
}

// collectContainersPeriodically collects containers, and records an event for each failure.
func (k *Kubelet) collectContainersPeriodically() {
	ticker := k.deps.Clock.NewTicker(ContainerGCPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-ticker.C():
		}
		if err := k.collectContainers(k.ctx); err != nil {
			k.deps.Logger.Warn("failed to collect containers", "error", err)
			k.deps.Recorder.Event(node.Reference(k.config.Node.Name), corev1.EventTypeWarning, "ContainerGCFailed", err.Error())
		}
	}
}

// collectContainers has orphans of the runtime stopped and removed, and has the worker of each Pod remove the dead containers
// that its status does not need.
func (k *Kubelet) collectContainers(ctx context.Context) error {
	sandboxes, err := k.parts.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	uids := make([]types.UID, 0, len(sandboxes.Items))
	for _, sandbox := range sandboxes.Items {
		uids = append(uids, types.UID(sandbox.GetMetadata().GetUid()))
	}
	k.parts.Signals.RuntimePods(uids) // without effect before all sources are ready
	for _, pod := range k.parts.Workers.Pods() {
		k.parts.Signals.Wake(pod.UID)
	}
	return nil
}
