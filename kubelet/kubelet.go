package kubelet

import (
	"context"
	"sync"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/server"
)

// Kubelet is the kubelet of one node under the names of Kubernetes 1.4: an agent.Agent, with more than 30 methods because
// that API has them.
type Kubelet struct {
	// Handlers are added with AddPodSyncLoopHandler and AddPodSyncHandler, before Run and later.
	lifecycle.PodSyncLoopHandlers
	lifecycle.PodSyncHandlers

	// handlersMu guards the handlers; handlersChanged is notified when one was added.
	handlersMu      sync.Mutex
	handlersChanged wakeup.Signal

	agent *agent.Agent
	parts agent.Components
	// config and deps are those of the agent. Options change them before the agent is made.
	config agent.Config
	deps   agent.Deps
	// configuration is the one that NewMainKubelet was called with, with defaults, and injected its dependencies.
	configuration kubeletconfig.KubeletConfiguration
	injected      *KubeletDeps
	auth          *server.Auth      // nil means access
	access        server.AuthConfig // of the configuration
	machine       *cachedMachine
	loop          loopTime
	failure       error // why Run ended before its channel was closed; nil if it did not
	// ctx is the context of methods that are given none. It ends when Run does, or with Close.
	ctx    context.Context //nolint:containedctx // see above
	cancel context.CancelFunc
}

// build creates the agent, as the last step of NewMainKubelet.
func (k *Kubelet) build() (err error) {
	if k.agent, err = agent.New(k.deps, k.config); err != nil {
		return err
	}
	k.parts, k.config, k.deps = k.agent.Components(), k.agent.Config(), k.agent.Deps()
	k.ctx, k.cancel = context.WithCancel(context.Background())
	for _, option := range k.injected.ContainerRuntimeOptions {
		option(k.parts.Runtime)
	}
	return nil
}

// stop ends Run, RunOnce and the servers.
func (k *Kubelet) stop() { k.cancel() }

// Close ends the connections of a Kubelet that no longer runs.
func (k *Kubelet) Close() error {
	k.cancel()
	return k.agent.Close()
}
