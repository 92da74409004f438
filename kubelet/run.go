package kubelet

import (
	"context"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/kubelet/node"
	kubelettypes "github.com/berth-dev/berth/kubelet/types"
)

var _ KubeletBootstrap = (*Kubelet)(nil)

// BirthCry records the event that the kubelet has started.
func (k *Kubelet) BirthCry() {
	k.deps.Recorder.Event(node.Reference(k.config.Node.Name), corev1.EventTypeNormal, "Starting", "Starting kubelet.")
}

// Run runs the node's Pods until the channel is closed, and returns when all has ended but the containers. Pods of the
// channel run beside those of the other sources; with KubeletDeps.PodConfig there are no others. It is called once. A
// failure is logged, since it cannot be returned; RunKubelet returns it.
func (k *Kubelet) Run(updates <-chan kubelettypes.PodUpdate) {
	defer k.cancel()
	ctx, cancel := context.WithCancel(k.ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- contain.Do("kubelet.Run", "", func() error { return k.start(ctx) }) }()
	adapter := newUpdateAdapter(k)
	for {
		select {
		case err := <-ended:
			if err != nil {
				k.deps.Logger.Error("the kubelet has ended", "error", err)
			}
			k.failure = err
			return
		case update, open := <-updates:
			if open {
				adapter.apply(update)
				continue
			}
			cancel()
			updates = nil
		}
	}
}

// start runs the agent and the caller's handlers until ctx ends.
func (k *Kubelet) start(ctx context.Context) error {
	k.loop.running.Store(true)
	defer k.loop.running.Store(false)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(contain.Func("kubelet.start", "", func() error { return k.agent.Start(ctx) }))
	group.Go(contain.Func("kubelet.start", "", func() error { return k.runHandlers(ctx) }))
	return group.Wait()
}
