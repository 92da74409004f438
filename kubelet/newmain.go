package kubelet

import (
	"errors"
	"fmt"
	"net"
	"os"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/server"
)

// WithRootDir keeps all state below dir, an absolute path, in place of /var/lib/kubelet.
func WithRootDir(dir string) Option { return func(k *Kubelet) { k.config.RootDir = dir } }

// WithNode names the Node and its addresses, in place of the machine's own.
func WithNode(name string, ips ...net.IP) Option {
	return func(k *Kubelet) {
		k.config.Node.Name = name
		if len(ips) > 0 {
			k.config.Node.IPs = ips
		}
	}
}

// WithPodAdmitHandler calls the handler for each new Pod that the kubelet itself would take.
func WithPodAdmitHandler(handler lifecycle.PodAdmitHandler) Option {
	return func(k *Kubelet) { k.deps.AdmitHandlers = append(k.deps.AdmitHandlers, handler) }
}

// WithCredentialProviders uses the credential provider plugins in dir for registries, as the configuration, a file or a
// directory, says. The Kubernetes kubelet has command-line flags for it.
func WithCredentialProviders(configuration, dir string) Option {
	return func(k *Kubelet) {
		k.config.Images.CredentialProviders, k.config.Images.CredentialProvidersDir = configuration, dir
	}
}

// NewMainKubelet returns a Kubelet with a configuration and dependencies of Kubernetes. It starts nothing and sends no
// request. Without a client in kubeDeps, or with standaloneMode, there is no API server. An error names the field that is
// wrong.
func NewMainKubelet(kubeCfg *kubeletconfig.KubeletConfiguration, kubeDeps *KubeletDeps, standaloneMode bool,
) (*Kubelet, error) {
	if kubeCfg == nil {
		return nil, errors.New("create kubelet: kubeCfg is nil")
	}
	if kubeDeps == nil {
		kubeDeps = &KubeletDeps{}
	}
	hostname := os.Hostname
	if kubeDeps.OSInterface != nil {
		hostname = kubeDeps.OSInterface.Hostname
	}
	chosen, err := convertConfiguration(kubeCfg, hostname)
	if err != nil {
		return nil, fmt.Errorf("create kubelet: %w", err)
	}
	k := &Kubelet{
		configuration: *chosen.Source.DeepCopy(), injected: kubeDeps, config: chosen.Agent, deps: convertDeps(kubeDeps, standaloneMode),
		machine: &cachedMachine{}, access: chosen.Agent.Server.Auth,
	}
	k.config.Static.HandlePodOnly = kubeDeps.PodConfig != nil
	if kubeDeps.OOMAdjuster == nil {
		k.config.OOMScoreAdj = nil // the caller's process keeps its own
	}
	if kubeDeps.Auth != nil {
		k.auth = &server.Auth{Authenticator: kubeDeps.Auth, Authorizer: kubeDeps.Auth}
	}
	for _, option := range kubeDeps.Options {
		option(k)
	}
	if err := k.build(); err != nil {
		return nil, err
	}
	for _, warning := range chosen.Warnings {
		k.deps.Logger.Warn("configuration without effect", "setting", warning)
	}
	return k, nil
}

// convertDeps returns the agent's dependencies for the caller's.
func convertDeps(in *KubeletDeps, standalone bool) agent.Deps {
	out := agent.Deps{
		Client: in.KubeClient, Runtime: in.DockerClient, Recorder: in.Recorder, EventClient: in.EventClient,
		Machine: in.CAdvisorInterface, ContainerManager: in.ContainerManager, OOMAdjuster: in.OOMAdjuster,
	}
	if out.Client == nil {
		out.Client = in.ExternalKubeClient
	}
	if standalone {
		out.Client = nil
	}
	return out
}
