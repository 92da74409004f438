package kubelet

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/cm"
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

// WithContainerLogsDir keeps the links to the containers' logs in dir, in place of ContainerLogsDir.
func WithContainerLogsDir(dir string) Option {
	return func(k *Kubelet) { k.config.Logs.ContainersDir = dir }
}

// WithPodAdmitHandler calls the handler for each new Pod that the kubelet itself would take.
func WithPodAdmitHandler(handler lifecycle.PodAdmitHandler) Option {
	return func(k *Kubelet) { k.deps.AdmitHandlers = append(k.deps.AdmitHandlers, handler) }
}

// WithLogger sends the kubelet's log to logger, in place of slog.Default().
func WithLogger(logger *slog.Logger) Option { return func(k *Kubelet) { k.deps.Logger = logger } }

// WithCredentialProviders uses the credential provider plugins in dir for registries, as the configuration, a file or a
// directory, says. The Kubernetes kubelet has command-line flags for it.
func WithCredentialProviders(configuration, dir string) Option {
	return func(k *Kubelet) {
		k.config.Images.CredentialProviders, k.config.Images.CredentialProvidersDir = configuration, dir
	}
}

// NewMainKubelet returns a Kubelet with a configuration and dependencies of Kubernetes. It starts nothing and sends no
// request, but that for the Node's name to KubeletDeps.Cloud. Without a client in kubeDeps, or with standaloneMode, there is
// no API server. An error names the field that is wrong.
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
	if err := nameNode(&chosen.Agent.Node, kubeDeps.Cloud); err != nil {
		return nil, fmt.Errorf("create kubelet: %w", err)
	}
	if manager := kubeDeps.ContainerManager; manager != nil {
		if err := applyLayout(&chosen.Agent.Cgroups, manager.GetNodeConfig()); err != nil {
			return nil, fmt.Errorf("create kubelet: KubeletDeps.ContainerManager: %w", err)
		}
	}
	k := &Kubelet{
		configuration: *chosen.Source.DeepCopy(), injected: kubeDeps, config: chosen.Agent, deps: convertDeps(kubeDeps, standaloneMode),
		machine: &cachedMachine{}, access: chosen.Agent.Server.Auth, handlersChanged: wakeup.NewSignal(),
	}
	k.config.Static.HandlePodOnly = kubeDeps.PodConfig != nil
	if kubeDeps.OOMAdjuster == nil {
		k.config.OOMScoreAdj = nil // the caller's process keeps its own
	}
	if kubeDeps.Auth != nil {
		k.auth = &server.Auth{Authenticator: kubeDeps.Auth, Authorizer: kubeDeps.Auth, Attributes: kubeDeps.Auth}
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
	if _, err := NewInitializedVolumePluginMgr(k, nil, kubeDeps.VolumePlugins); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// applyLayout takes over the layout of a caller's ContainerManager. What it leaves empty stays that of the configuration.
func applyLayout(c *agent.CgroupConfig, layout cm.NodeConfig) (err error) {
	if layout.CgroupDriver != "" {
		if c.Driver, err = cm.ParseDriver(layout.CgroupDriver); err != nil {
			return err
		}
	}
	c.Root = cmp.Or(layout.CgroupRoot, c.Root)
	c.KubeletCgroups = cmp.Or(layout.KubeletCgroupsName, c.KubeletCgroups)
	c.SystemCgroups = cmp.Or(layout.SystemCgroupsName, c.SystemCgroups)
	c.PodPidsLimit = cmp.Or(layout.PodPidsLimit, c.PodPidsLimit)
	if layout.KubeReserved != nil {
		c.Enforcement.KubeReserved = layout.KubeReserved
	}
	if layout.SystemReserved != nil {
		c.Enforcement.SystemReserved = layout.SystemReserved
	}
	return nil
}

// convertDeps returns the agent's dependencies for the caller's.
func convertDeps(in *KubeletDeps, standalone bool) agent.Deps {
	out := agent.Deps{
		Client: in.KubeClient, Runtime: in.DockerClient, Recorder: in.Recorder, EventClient: in.EventClient,
		Machine: in.CAdvisorInterface, ContainerManager: in.ContainerManager, OOMAdjuster: in.OOMAdjuster,
		VolumePlugins: in.VolumePlugins, OS: in.OSInterface, Instance: cloudInstance(in.Cloud), Logger: slog.Default(),
	}
	if in.Mounter != nil {
		out.Mounter = in.Mounter
	}
	if out.Client == nil {
		out.Client = in.ExternalKubeClient
	}
	if standalone {
		out.Client = nil
	}
	return out
}
