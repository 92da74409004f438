package kubelet

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berth-dev/berth/kubelet/allocation"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/cri"
	"github.com/berth-dev/berth/kubelet/csinode"
	"github.com/berth-dev/berth/kubelet/images"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/logs"
	"github.com/berth-dev/berth/kubelet/network"
	"github.com/berth-dev/berth/kubelet/node"
	"github.com/berth-dev/berth/kubelet/nodeaddress"
	"github.com/berth-dev/berth/kubelet/objects"
	"github.com/berth-dev/berth/kubelet/pleg"
	"github.com/berth-dev/berth/kubelet/pluginmanager"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/prober"
	"github.com/berth-dev/berth/kubelet/prober/probe"
	"github.com/berth-dev/berth/kubelet/server"
	"github.com/berth-dev/berth/kubelet/stats"
	"github.com/berth-dev/berth/kubelet/status"
	"github.com/berth-dev/berth/kubelet/token"
	"github.com/berth-dev/berth/kubelet/userns"
	"github.com/berth-dev/berth/kubelet/volumemanager"
	"github.com/berth-dev/berth/volume/csi"
	"github.com/berth-dev/berth/volume/operationexecutor"
	"github.com/berth-dev/berth/volume/plugins"
)

// connect makes the runtime's client.
func (k *Kubelet) connect() error {
	if err := k.reach(); err != nil || k.cfg.ContainerLogsDir == "" {
		return err
	}
	k.links = logs.NewLinks(k.cfg.ContainerLogsDir, k.cfg.PodLogsDir)
	k.runtime = &linked{Runtime: k.runtime, links: k.links, failed: func(err error) {
		k.deps.Logger.Warn("linking a container's log failed", "error", err)
	}}
	return nil
}

func (k *Kubelet) reach() error {
	if k.deps.Runtime != nil {
		k.runtime = k.deps.Runtime
		return nil
	}
	timings := newTimings(k.metrics)
	client, err := cri.New(cri.Deps{Observe: timings.observe, Clock: k.deps.Clock}, cri.Config{Endpoint: k.cfg.RuntimeEndpoint})
	if err != nil {
		return err
	}
	k.connection, k.runtime = client, &measured{Runtime: client, timings: timings, clock: k.deps.Clock}
	return nil
}

// furnish makes what keeps something for Pods: the node, its objects, volumes and control groups.
func (k *Kubelet) furnish() (err error) {
	cfg, d := &k.cfg, &k.deps
	if err := k.remember(); err != nil {
		return err
	}
	k.machine, k.addresses = node.NewLinuxMachine("/", cfg.RootDir), nodeaddress.NewStore(cfg.NodeIPs)
	k.node, err = node.New(node.Deps{
		Client: d.Client, LeaseClient: d.LeaseClient, Runtime: k.runtime,
		Machine: k.machine, Recorder: d.Recorder, Clock: d.Clock,
		OnNode: k.nodeChanged, OnRuntime: k.networkOf, OnImages: k.ledger.Reconcile,
		Logger: d.Logger.With("room", "node"),
	}, node.Config{
		Name: cfg.NodeName, Hostname: cfg.Hostname, IPs: cfg.NodeIPs, Port: cfg.Server.Port, Version: cfg.Version,
		Labels: cfg.Labels, Taints: cfg.Taints, MaxPods: cfg.MaxPods,
		KubeReserved: cfg.KubeReserved, SystemReserved: cfg.SystemReserved, Thresholds: cfg.Thresholds,
	})
	if err != nil {
		return err
	}
	k.cgroups, err = cm.New(cm.Deps{Logger: d.Logger.With("room", "cgroups")}, cm.Config{
		CgroupRoot: cfg.CgroupRoot, Driver: cfg.CgroupDriver, PodPidsLimit: cfg.PodPidsLimit,
		Resources: cm.DetectResourceOptions(),
	})
	if err != nil {
		return err
	}
	k.grants = allocation.Open(cfg.RootDir, d.Logger.With("room", "allocations"))
	k.services = newServices(d.Client)
	if k.objects, err = objects.New(objects.Deps{Client: d.Client, Clock: d.Clock, Logger: d.Logger.With("room", "objects")}); err != nil {
		return err
	}
	k.objects.Subscribe(func(uid types.UID) { k.workers.Wake(uid) })
	if k.tokens, err = token.New(token.Deps{Client: d.Client, Clock: d.Clock, Logger: d.Logger.With("room", "tokens")}); err != nil {
		return err
	}
	return k.furnishVolumes()
}

// furnishVolumes makes what keeps volumes, and what finds the drivers of some of them.
func (k *Kubelet) furnishVolumes() (err error) {
	cfg, d := &k.cfg, &k.deps
	k.drivers = csi.NewDrivers()
	k.csi, err = csi.New(csi.Deps{
		Client: d.Client, Drivers: k.drivers, Tokens: k.tokens, OnLimitExceeded: func(driver string) { k.csiNode.RefreshAllocatable(driver) },
		Logger: d.Logger.With("room", "csi"),
	}, csi.Config{RootDir: cfg.RootDir, NodeName: cfg.NodeName})
	if err != nil {
		return err
	}
	registry, err := plugins.New(plugins.Deps{
		Objects: k.objects, Tokens: k.tokens, NodeAllocatable: k.allocatable, CSI: k.csi,
	})
	if err != nil {
		return err
	}
	durations, calls := operationexecutor.NewDurations(), csi.NewCallMetrics(d.Clock)
	k.metrics.MustRegister(durations, calls)
	k.volumes, err = volumemanager.New(
		volumemanager.Deps{
			Client: d.Client, Plugins: registry, Objects: k.objects, Tokens: k.tokens, Node: k.node,
			Claims: d.Claims, OnSizeLimitExceeded: k.evictOutgrown, Observe: durations.Observe,
			Timeline: d.Timeline, Recorder: d.Recorder, Clock: d.Clock, Logger: d.Logger.With("room", "volumes"),
		}, volumemanager.Config{RootDir: cfg.RootDir, NodeName: cfg.NodeName})
	if err != nil {
		return err
	}
	k.drivers.Subscribe(k.volumes.Retry)
	k.csiNode, err = csinode.New(csinode.Deps{
		Client: d.Client, Drivers: k.drivers, Calls: calls, Registered: k.node.Registered(), Node: k.node.Node,
		NotReady: func(reason error) { k.node.SetNotReady("csi", reason) }, RefreshPeriod: k.csi.AllocatableUpdatePeriod,
		Clock: d.Clock, Logger: d.Logger.With("room", "csi"),
	}, csinode.Config{NodeName: cfg.NodeName})
	if err != nil {
		return err
	}
	k.drivers.Subscribe(k.csiNode.RefreshPeriodsChanged)
	k.plugins, err = pluginmanager.New(
		pluginmanager.Deps{
			Handlers: map[string]pluginmanager.Handler{registerapi.CSIPlugin: k.csiNode},
			Clock:    d.Clock, Logger: d.Logger.With("room", "plugins"),
		},
		pluginmanager.Config{Dir: filepath.Join(cfg.RootDir, "plugins_registry")})
	return err
}

// employ makes what works for Pods.
func (k *Kubelet) employ() (err error) {
	cfg, d := &k.cfg, &k.deps
	keyring, err := k.keyring()
	if err != nil {
		return err
	}
	if k.images, err = images.New(images.Deps{
		Service: k.runtime, Keyring: keyring, PullRecords: k.ledger, Recorder: d.Recorder, Clock: d.Clock,
		OnPulled: k.node.ImagesChanged, ObservePull: k.imageTimes.observe, Logger: d.Logger,
	}, images.Config{
		MaxParallel: cfg.MaxParallelPulls, PullQPS: cfg.PullQPS, PullBurst: cfg.PullBurst,
	}); err != nil {
		return err
	}
	if k.statuses, err = status.NewWriter(status.WriterDeps{
		Client: d.Client, Observe: k.lives.statusWritten, Timeline: d.Timeline, Clock: d.Clock, Logger: d.Logger,
	}, status.WriterConfig{}); err != nil {
		return err
	}
	if err := k.reflect(); err != nil {
		return err
	}
	if k.probes, err = prober.New(prober.Deps{
		Prober: probe.New(k.runtime), OnResult: func(v prober.Result) { k.workers.Wake(v.PodUID) },
		Recorder: d.Recorder, Timeline: d.Timeline, Registerer: k.probeMetrics, Clock: d.Clock, Logger: d.Logger,
	}); err != nil {
		return err
	}
	hooks, err := lifecycle.NewRunner(lifecycle.Deps{
		Exec: k.runtime, Recorder: d.Recorder, Clock: d.Clock, Logger: d.Logger,
	})
	if err != nil {
		return err
	}
	if k.watcher, err = pleg.New(pleg.Deps{
		Runtime: k.runtime, OnPodChanged: func(uid types.UID) { k.workers.RuntimeChanged(uid) }, OnListed: k.heldByRuntime,
		ObserveRelist: k.lives.relisted, Exits: d.Exits, Clock: d.Clock, Logger: d.Logger,
	}, pleg.Config{RelistPeriod: cfg.RuntimeAudit}); err != nil {
		return err
	}
	k.builder = &builder{
		hostIPs: k.addresses.Strings,
		cfg:     *cfg, client: d.Client, recorder: d.Recorder, cgroups: k.cgroups, volumes: k.volumes,
		objects: k.objects, services: k.services, allocatable: k.allocatable,
		ground: k.awaitGround,
		users:  userns.New(filepath.Join(cfg.RootDir, "pods")),
	}
	if k.workers, err = podworker.New(podworker.Deps{
		Runtime: k.runtime, Reader: k.watcher, Images: k.images, Volumes: k.volumes, Statuses: k.mirrors,
		Probes: k.probes, Hooks: hooks, Builder: k.builder,
		Admitter: newJudged(k.metrics, k.face.admitter(&admission{
			node: k.node.Node, allocatable: k.allocatable, volumes: k.volumes.Supported, maxPods: cfg.MaxPods,
			unsafeSysctls: cfg.AllowedUnsafeSysctls, fresh: k.freshNode, sys: systemFiles, resources: k.builder.Resources,
		})),
		OnPodGone: k.gone, Allocations: k.grants, Metrics: k.lives, Timeline: d.Timeline, Recorder: d.Recorder, Logger: d.Logger,
		Clock: d.Clock,
	}, podworker.Config{
		RuntimeName: cfg.RuntimeName, HostIPs: k.addresses.Strings, MaxBackoff: cfg.MaxBackoff,
	}); err != nil {
		return err
	}
	k.health = k.checks()
	if err = k.tend(); err != nil {
		return err
	}
	return k.openSources()
}

// open makes the server, if it is to listen anywhere.
func (k *Kubelet) open() error {
	cfg := k.cfg.Server
	if len(cfg.Addresses) == 0 {
		return nil
	}
	auth, err := server.NewDelegatedAuth(server.AuthDeps{Client: k.deps.Client, Logger: k.deps.Logger}, server.AuthConfig{ClientCAFile: cfg.ClientCAFile})
	if err != nil {
		return err
	}
	if cfg.Port <= 0 {
		return errors.New("kubelet: Config.Server.Port is needed for the Node object when the server listens")
	}
	host := k.newHost()
	usage, err := k.newStats(host)
	if err != nil {
		return err
	}
	k.metrics.MustRegister(&gauges{node: k.cfg.NodeName, pods: host.GetPods, drift: k.Drift, working: k.workers.CountByState})
	k.metrics.MustRegister(volumemanager.NewCollector(k.volumes))
	k.server, err = server.New(server.Deps{
		Host: host, Auth: auth, Metrics: k.metrics, ProbeMetrics: k.probeMetrics, Stats: usage, Configz: k.configz,
		RequestMetrics: k.requests, Flags: k.deps.Flags, Checks: k.health, Logger: k.deps.Logger,
	}, server.Config{
		NodeName: k.cfg.NodeName, Addresses: cfg.Addresses, CertFile: cfg.CertFile, KeyFile: cfg.KeyFile,
		AllowMissingCert: cfg.CertLater, HealthzAddress: cfg.HealthzAddress, LogDir: cfg.LogDir, LogQuery: cfg.LogQuery,
		Profiling: cfg.Profiling, ContentionProfiling: cfg.Contention, DebugFlags: cfg.DebugFlags, DisableDebugging: cfg.NoDebugging,
	})
	return err
}

// newStats makes what measures the node and its Pods.
func (k *Kubelet) newStats(host *host) (*stats.Provider, error) {
	var pid func() int
	if k.connection != nil {
		pid = k.connection.PID
	}
	return stats.New(stats.Deps{
		Runtime: k.runtime, Pods: host.GetPods, Volumes: k.volumes, Clock: k.deps.Clock, Logger: k.deps.Logger,
		Cgroups: k.cgroups, Layout: k.GetNodeConfig, RuntimePID: pid,
		LogDir: func(pod *corev1.Pod) string {
			return kuberuntime.PodLogsDir(k.cfg.PodLogsDir, pod.Namespace, pod.Name, pod.UID)
		},
	}, stats.Config{NodeName: k.cfg.NodeName, RootDir: k.cfg.RootDir})
}

// allocatable is what Pods may use of the node, nil while the machine cannot be read.
func (k *Kubelet) allocatable() corev1.ResourceList {
	_, allocatable, err := k.node.Resources()
	if err != nil {
		k.deps.Logger.Warn("reading the machine's resources failed", "error", err)
	}
	return allocatable
}

// freshNodeTimeout bounds how long admission, which judges one Pod after the other, waits for the API server.
const freshNodeTimeout = 2 * time.Second

// freshNode reads the node's object anew.
func (k *Kubelet) freshNode() (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(k.face.life, freshNodeTimeout)
	defer cancel()
	node, err := k.deps.Client.CoreV1().Nodes().Get(ctx, k.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read node %q anew: %w", k.cfg.NodeName, err)
	}
	return node, nil
}

func (k *Kubelet) dns() network.DNS {
	return network.DNS{
		ClusterDNS: k.cfg.ClusterDNS, ClusterDomain: k.cfg.ClusterDomain, ResolvConf: k.cfg.ResolvConf,
	}
}
