package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	podconfig "github.com/berth-dev/berth/kubelet/config"
	kubelettypes "github.com/berth-dev/berth/kubelet/types"

	"github.com/berth-dev/berth/internal/contain"
)

// defaultPort is the port of the node's server where the configuration names none.
const defaultPort = 10250

var _ KubeletBuilder = newBootstrap

// newBootstrap is NewMainKubelet as a KubeletBuilder.
func newBootstrap(config *kubeletconfig.KubeletConfiguration, deps *KubeletDeps, standaloneMode bool,
) (KubeletBootstrap, error) {
	return NewMainKubelet(config, deps, standaloneMode)
}

// RunKubelet makes a Kubelet with KubeletDeps.Builder, records its start, and runs it until ctx ends: with the Pods of
// KubeletDeps.PodConfig, or else of its own sources, with garbage collection, and with the servers that the configuration
// enables. With runOnce it runs the Pods of the first update and returns, at the end of ctx without waiting for them. It is called
// once for one deps.
func RunKubelet(ctx context.Context, config *kubeletconfig.KubeletConfiguration, deps *KubeletDeps, standaloneMode, runOnce bool,
) (err error) {
	if config == nil || deps == nil {
		return errors.New("run kubelet: a configuration and dependencies are required")
	}
	builder := deps.Builder
	if builder == nil {
		builder = newBootstrap
	}
	k, err := builder(config, deps, standaloneMode)
	if err != nil {
		return fmt.Errorf("run kubelet: %w", err)
	}
	if closer, ok := k.(io.Closer); ok {
		defer func() { err = errors.Join(err, closer.Close()) }()
	}
	k.BirthCry()
	if runOnce {
		if deps.PodConfig == nil {
			return errors.New("run kubelet once: KubeletDeps.PodConfig is required: it delivers the Pods")
		}
		if own, ok := k.(interface{ stop() }); ok {
			defer context.AfterFunc(ctx, own.stop)()
		}
		results, err := k.RunOnce(deps.PodConfig.Updates())
		errs := []error{err}
		for _, result := range results {
			errs = append(errs, result.Err)
		}
		return errors.Join(errs...)
	}
	k.StartGarbageCollection()
	var running sync.WaitGroup
	defer running.Wait() // servers end with the Kubelet
	startServers(&running, k, config, deps)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	updates := make(chan kubelettypes.PodUpdate)
	running.Go(contain.Guard("kubelet.RunKubelet", "", func() { copyUpdates(ctx, deps.PodConfig, updates) }))
	k.Run(updates)
	if own, ok := k.(*Kubelet); ok && own.failure != nil {
		return fmt.Errorf("run kubelet: %w", own.failure)
	}
	return nil
}

// startServers starts the servers that the configuration enables.
func startServers(group *sync.WaitGroup, k KubeletBootstrap, config *kubeletconfig.KubeletConfiguration, deps *KubeletDeps) {
	address := net.ParseIP(config.Address)
	if ptr.Deref(config.EnableServer, true) {
		debugging, port := ptr.Deref(config.EnableDebuggingHandlers, true), cmp.Or(config.Port, defaultPort)
		group.Go(contain.Guard("kubelet.startServers", "", func() { k.ListenAndServe(address, uint(port), deps.TLSOptions, deps.Auth, debugging) }))
	}
	if config.ReadOnlyPort > 0 {
		group.Go(contain.Guard("kubelet.startServers", "", func() { k.ListenAndServeReadOnly(address, uint(config.ReadOnlyPort)) }))
	}
}

// copyUpdates copies the updates of the caller's source, if there is one, and closes their channel when ctx ends.
func copyUpdates(ctx context.Context, from *podconfig.PodConfig, to chan<- kubelettypes.PodUpdate) {
	defer close(to)
	var source <-chan kubelettypes.PodUpdate
	if from != nil {
		source = from.Updates()
	}
	for {
		select {
		case <-ctx.Done():
			return
		case update := <-source: // it is never closed
			select {
			case to <- update:
			case <-ctx.Done():
				return
			}
		}
	}
}
