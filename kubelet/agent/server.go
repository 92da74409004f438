package agent

import (
	"context"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/metrics"
	"github.com/berth-dev/berth/kubelet/server"
	"github.com/berth-dev/berth/kubelet/stats"
	"github.com/berth-dev/berth/kubelet/stats/containermetrics"
	"github.com/berth-dev/berth/kubelet/volumemanager"
)

// serverComponents serve the node's API.
type serverComponents struct {
	host       *server.PodHost
	stats      *stats.Provider
	checks     []healthz.HealthChecker
	nodeConfig func() cm.NodeConfig
	// listening is nil if there is no address to listen on.
	listening *server.Server
}

func newServer(base *base, runtime *runtimeComponents, n *nodeComponents, storage *storageComponents, p *podComponents,
) (*serverComponents, error) {
	config, deps := &base.config, &base.deps
	s := &serverComponents{
		host: server.NewPodHost(server.PodHostDeps{
			Runtime: runtime.client, Pods: p.workers, Statuses: p.mirrors, Clock: deps.Clock,
			CheckpointDir: filepath.Join(config.RootDir, "checkpoints"),
		}),
		checks:     server.Checks(deps.Clock, func() { p.workers.Pods() }),
		nodeConfig: func() cm.NodeConfig { return nodeConfig(base, n) },
	}
	var err error
	var machine stats.Machine
	if deps.machineGiven {
		machine = deps.Machine
	}
	containers, err := newContainerMetrics(base, runtime, n, s)
	if err != nil {
		return nil, err
	}
	if s.stats, err = stats.New(stats.Deps{
		Containers: containers, Machine: machine, Runtime: runtime.client, Pods: s.host.GetPods, Volumes: storage.volumes, Clock: deps.Clock,
		Logger:  deps.Logger,
		Cgroups: n.cgroups, Layout: s.nodeConfig, RuntimePID: runtime.pid(),
		LogDir: func(pod *corev1.Pod) string {
			return kuberuntime.PodLogsDir(config.Logs.PodsDir, pod.Namespace, pod.Name, pod.UID)
		},
	}, stats.Config{NodeName: config.Node.Name, RootDir: config.RootDir}); err != nil {
		return nil, err
	}
	pods := &metrics.PodCollector{
		NodeName: config.Node.Name, Pods: s.host.GetPods, MissedEvents: p.watcher.MissedEvents, WorkerStates: p.workers.CountByState,
		Mirrors: p.mirrors.Mirrors, IsDesired: p.workers.IsDesired,
	}
	if config.Cgroups.MemoryQoS != nil {
		pods.ClassRequests = p.workers.ClassRequests
	}
	base.metrics.main.MustRegister(volumemanager.NewCollector(storage.volumes), pods, stats.NewLogCollector(s.stats))
	return s, s.listen(base, n)
}

// newContainerMetrics returns what serves /metrics/cadvisor, nil if the runtime's metrics do.
func newContainerMetrics(base *base, runtime *runtimeComponents, n *nodeComponents, s *serverComponents) (stats.Containers, error) {
	metrics.RegisterProvider(base.metrics.main, base.config.Server.RuntimeMetrics)
	if base.config.Server.RuntimeMetrics {
		return nil, nil
	}
	return containermetrics.New(containermetrics.Deps{
		Machine: base.deps.Machine, Runtime: runtime.client, Cgroups: n.cgroups, Pods: s.host.GetPods, Layout: s.nodeConfig,
		RuntimePID: runtime.pid(), Clock: base.deps.Clock, Logger: base.deps.Logger,
		Version: func() (containermetrics.Version, error) {
			info, err := n.machine.Info()
			return containermetrics.Version{Kernel: info.Kernel, OS: info.OSImage}, err
		},
	})
}

// listen creates the server, if there is an address to listen on.
func (s *serverComponents) listen(base *base, n *nodeComponents) (err error) {
	in := &base.config.Server
	if len(in.Addresses) == 0 && in.HealthzAddress == "" && in.ReadOnlyAddress == "" {
		return nil
	}
	var auth server.Auth
	if len(in.Addresses) > 0 {
		access := in.Auth
		access.ClientCAFile = in.ClientCAFile
		if auth, err = server.NewDelegatedAuth(server.AuthDeps{Client: base.deps.Client, Logger: base.deps.Logger}, access); err != nil {
			return err
		}
	}
	s.listening, err = server.New(s.deps(base, n, auth), server.Config{
		NodeName: base.config.Node.Name, Addresses: in.Addresses, CertFile: in.CertFile, KeyFile: in.KeyFile, TLS: in.TLS,
		AllowMissingCert: in.CertLater, HealthzAddress: in.HealthzAddress, ReadOnlyAddress: in.ReadOnlyAddress,
		StreamIdleTimeout: in.StreamIdleTimeout, LogDir: in.LogDir, LogQuery: in.LogQuery, Profiling: in.Profiling,
		ContentionProfiling: in.Contention, DebugFlags: in.DebugFlags, DisableDebugging: in.NoDebugging,
	})
	return err
}

// deps returns the dependencies of a server of the node's API with this authentication and authorization.
func (s *serverComponents) deps(base *base, n *nodeComponents, auth server.Auth) server.Deps {
	return server.Deps{
		Host: s.host, Auth: auth, Metrics: base.metrics.served, ProbeMetrics: base.metrics.probes, Stats: s.stats, Processes: base.deps.Processes,
		Configz: func() map[string]any {
			return map[string]any{"kubeletconfig": configuration(&base.config, n.cgroups.Driver())}
		},
		RequestMetrics: base.metrics.requests, TracerProvider: base.tracing, Flags: base.deps.Flags, Checks: s.checks, Logger: base.deps.Logger,
	}
}

// Start serves until ctx ends.
func (s *serverComponents) Start(ctx context.Context) error {
	if s.listening == nil {
		return nil
	}
	return s.listening.Start(ctx)
}

// ready is closed as soon as the server listens; without a server it is from the start.
func (s *serverComponents) ready() <-chan struct{} {
	if s.listening != nil {
		return s.listening.Ready()
	}
	closed := make(chan struct{})
	close(closed)
	return closed
}

func (s *serverComponents) setAddresses(addresses []string) {
	if s.listening != nil {
		s.listening.SetAddresses(addresses)
	}
}

// nodeConfig returns the layout of the node's cgroups.
func nodeConfig(base *base, n *nodeComponents) cm.NodeConfig {
	if manager := base.deps.ContainerManager; manager != nil {
		return manager.GetNodeConfig()
	}
	c := &base.config.Cgroups
	return cm.NodeConfig{
		KubeletCgroupsName: c.KubeletCgroups, SystemCgroupsName: c.SystemCgroups, RuntimeCgroupsName: c.RuntimeCgroups, CgroupRoot: c.Root,
		CgroupDriver: string(n.cgroups.Driver()), CgroupsPerQOS: true, PodPidsLimit: c.PodPidsLimit,
		KubeReserved: c.Enforcement.KubeReserved, SystemReserved: c.Enforcement.SystemReserved,
	}
}
