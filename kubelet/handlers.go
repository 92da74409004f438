package kubelet

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/status"
)

const (
	// handlersPeriod is how often PodSyncLoopHandlers are polled, whose contract has no event.
	handlersPeriod = 10 * time.Second
	// networkPluginsPeriod is how often the Status of NetworkPlugins is polled, for the same reason.
	networkPluginsPeriod = 30 * time.Second
)

// AddPodSyncLoopHandler adds a handler, which is called from now on.
func (k *Kubelet) AddPodSyncLoopHandler(handler lifecycle.PodSyncLoopHandler) {
	k.handlersMu.Lock()
	defer k.handlersMu.Unlock()
	k.PodSyncLoopHandlers.AddPodSyncLoopHandler(handler)
	k.handlersChanged.Notify()
}

// AddPodSyncHandler adds a handler, which is called from now on.
func (k *Kubelet) AddPodSyncHandler(handler lifecycle.PodSyncHandler) {
	k.handlersMu.Lock()
	defer k.handlersMu.Unlock()
	k.PodSyncHandlers.AddPodSyncHandler(handler)
	k.handlersChanged.Notify()
}

// handlers returns the handlers that were added until now.
func (k *Kubelet) handlers() (lifecycle.PodSyncLoopHandlers, lifecycle.PodSyncHandlers) {
	k.handlersMu.Lock()
	defer k.handlersMu.Unlock()
	return slices.Clone(k.PodSyncLoopHandlers), slices.Clone(k.PodSyncHandlers)
}

// runHandlers polls the caller's handlers and network plugins until ctx ends. Without any it has no timer.
func (k *Kubelet) runHandlers(ctx context.Context) error {
	defer k.agent.Subscribe(k.onPodEvent)()
	k.handlersChanged.Notify() // some may have been added before
	var ticker clock.Ticker
	handlers, networks := (<-chan time.Time)(nil), (<-chan time.Time)(nil)
	defer func() {
		if ticker != nil {
			ticker.Stop()
		}
	}()
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
		case <-k.handlersChanged.C():
			if loop, sync := k.handlers(); ticker == nil && len(loop)+len(sync) > 0 {
				ticker = k.deps.Clock.NewTicker(handlersPeriod)
				handlers = ticker.C()
			}
			k.pollHandlers()
		case <-handlers:
			k.pollHandlers()
		case <-networks:
			k.pollNetworkPlugins()
		}
	}
}

// pollHandlers syncs the Pods for which a handler requests it, and evicts those for which a handler requests that.
func (k *Kubelet) pollHandlers() {
	loop, sync := k.handlers()
	if len(loop)+len(sync) == 0 {
		return
	}
	for _, pod := range k.parts.Workers.Pods() {
		k.evictIfRequested(sync, pod)
		if loop.ShouldSync(pod) {
			k.parts.Signals.Wake(pod.UID)
		}
	}
}

// onPodEvent asks the handlers about a Pod whose status has changed.
func (k *Kubelet) onPodEvent(event status.Event) {
	if event.Removed || podutil.IsTerminal(&event.Status) {
		return
	}
	_, sync := k.handlers()
	if len(sync) == 0 {
		return
	}
	for _, pod := range k.parts.Workers.Pods() {
		if pod.UID == event.UID {
			k.evictIfRequested(sync, pod)
		}
	}
}

func (k *Kubelet) evictIfRequested(handlers lifecycle.PodSyncHandlers, pod *corev1.Pod) {
	if response := handlers.ShouldEvict(pod); response.Evict {
		k.parts.Workers.Evict(pod.UID, status.Failure{Reason: response.Reason, Message: response.Message, Disruption: true}, nil)
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
