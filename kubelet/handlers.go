package kubelet

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/status"
)

const (
	// handlersPeriod is how often PodSyncLoopHandlers are polled, whose contract has no event.
	handlersPeriod = 10 * time.Second
	// networkPluginsPeriod is how often the Status of NetworkPlugins is polled, for the same reason.
	networkPluginsPeriod = 30 * time.Second
)

// runHandlers polls the caller's handlers and network plugins until ctx ends.
func (k *Kubelet) runHandlers(ctx context.Context) error {
	if len(k.PodSyncHandlers) > 0 {
		defer k.agent.Subscribe(k.onPodEvent)()
	}
	handlers, networks := make(<-chan time.Time), make(<-chan time.Time)
	if len(k.PodSyncLoopHandlers) > 0 || len(k.PodSyncHandlers) > 0 {
		ticker := k.deps.Clock.NewTicker(handlersPeriod)
		defer ticker.Stop()
		handlers = ticker.C()
	}
	if len(k.injected.NetworkPlugins) > 0 {
		ticker := k.deps.Clock.NewTicker(networkPluginsPeriod)
		defer ticker.Stop()
		networks = ticker.C()
		k.pollNetworkPlugins()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-handlers:
			k.pollHandlers()
		case <-networks:
			k.pollNetworkPlugins()
		}
	}
}

// pollHandlers syncs the Pods for which a handler requests it, and evicts those for which a handler requests that.
func (k *Kubelet) pollHandlers() {
	for _, pod := range k.parts.Workers.Pods() {
		k.evictIfRequested(pod)
		if k.ShouldSync(pod) {
			k.parts.Signals.Wake(pod.UID)
		}
	}
}

// onPodEvent asks the handlers about a Pod whose status has changed.
func (k *Kubelet) onPodEvent(event status.Event) {
	if event.Removed || podutil.IsTerminal(&event.Status) {
		return
	}
	for _, pod := range k.parts.Workers.Pods() {
		if pod.UID == event.UID {
			k.evictIfRequested(pod)
		}
	}
}

func (k *Kubelet) evictIfRequested(pod *corev1.Pod) {
	if response := k.ShouldEvict(pod); response.Evict {
		k.parts.Workers.Evict(pod.UID, status.Failure{Reason: response.Reason, Message: response.Message}, nil)
	}
}

// pollNetworkPlugins makes the node not ready while the status of a network plugin is an error.
func (k *Kubelet) pollNetworkPlugins() {
	for _, plugin := range k.injected.NetworkPlugins {
		err := plugin.Status()
		if err != nil {
			err = fmt.Errorf("network plugin %q: %w", plugin.Name(), err)
		}
		k.parts.Node.SetNotReady("network plugin "+plugin.Name(), err)
	}
}
