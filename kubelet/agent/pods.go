package agent

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/kubelet/admission"
	"github.com/berth-dev/berth/kubelet/images"
	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/metrics"
	"github.com/berth-dev/berth/kubelet/mirror"
	"github.com/berth-dev/berth/kubelet/pleg"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/prober"
	"github.com/berth-dev/berth/kubelet/prober/probe"
	"github.com/berth-dev/berth/kubelet/runtimehelper"
	"github.com/berth-dev/berth/kubelet/starting"
)

// podComponents run the Pods.
type podComponents struct {
	services *runtimehelper.Services
	helper   *runtimehelper.Helper
	images   *images.Manager
	mirrors  *mirror.Manager
	probes   *prober.Manager
	watcher  *pleg.Watcher
	workers  *podworker.Manager
	sources  *podSources
	shutdown *nodeShutdown
}

func newPods(base *base, runtime *runtimeComponents, n *nodeComponents, s *storageComponents, allocatable func() corev1.ResourceList,
) (*podComponents, error) {
	config, deps := &base.config, &base.deps
	p := &podComponents{}
	keyring, err := newKeyring(base, s)
	if err != nil {
		return nil, err
	}
	if p.images, err = images.New(images.Deps{
		Service: runtime.client, Keyring: keyring, PullRecords: n.pullRecords, Recorder: deps.Recorder, Clock: deps.Clock,
		OnPulled: n.manager.ImagesChanged, ObservePull: base.metrics.images.ObservePull, CountRequest: base.metrics.images.CountRequest,
		Logger: deps.Logger,
	}, images.Config{
		MaxParallel: config.Images.MaxParallelPulls, PullQPS: config.Images.PullQPS, PullBurst: config.Images.PullBurst,
	}); err != nil {
		return nil, err
	}
	if p.mirrors, err = newMirrors(base, n); err != nil {
		return nil, err
	}
	if p.probes, err = prober.New(prober.Deps{
		Prober: probe.New(runtime.client), OnResult: func(result prober.Result) { base.signals.Wake(result.PodUID) },
		Recorder: deps.Recorder, Timeline: deps.Timeline, Registerer: base.metrics.probes, Clock: deps.Clock, Logger: deps.Logger,
	}); err != nil {
		return nil, err
	}
	if p.watcher, err = pleg.New(pleg.Deps{
		Runtime: runtime.client, OnPodChanged: base.signals.RuntimeChanged, OnListed: base.signals.RuntimePods, OnActive: n.managers.Adopt,
		Metrics: base.metrics.pleg, Exits: deps.Exits, Clock: deps.Clock, Logger: deps.Logger,
	}, pleg.Config{RelistPeriod: config.Runtime.RelistPeriod}); err != nil {
		return nil, err
	}
	if p.services, p.helper, err = newRuntimeHelper(base, n, s, allocatable); err != nil {
		return nil, err
	}
	if p.shutdown, err = newNodeShutdown(base, n, func() *podworker.Manager { return p.workers }); err != nil {
		return nil, err
	}
	if p.workers, err = p.newWorkers(base, runtime, n, s, allocatable); err != nil {
		return nil, err
	}
	p.sources, err = newSources(base, n, p)
	return p, err
}

// newMirrors returns the manager of mirror Pods, which keeps all statuses where there is no API server.
func newMirrors(base *base, n *nodeComponents) (*mirror.Manager, error) {
	deps := mirror.Deps{OnStatus: base.podEvents.Changed, OnPrevious: base.signals.Wake, Logger: base.logger("mirror pods"), Clock: base.deps.Clock}
	if !base.deps.standalone {
		deps.Client, deps.Writer, deps.Node, deps.Registered = base.deps.Client, base.statuses, n.manager.Node, n.manager.Registered()
	}
	return mirror.New(deps)
}

func newRuntimeHelper(base *base, n *nodeComponents, s *storageComponents, allocatable func() corev1.ResourceList,
) (*runtimehelper.Services, *runtimehelper.Helper, error) {
	config, deps := &base.config, &base.deps
	client := deps.Client
	if deps.standalone {
		client = nil // there are no Services to wait for
	}
	services := runtimehelper.NewServices(client)
	helper, err := runtimehelper.New(runtimehelper.Deps{
		Client: deps.Client, Machine: n.machine, Cgroups: n.cgroups, NodeCgroups: n.nodeCgroups, Volumes: s.volumes,
		Objects: s.objects, Services: services, HostIPs: n.addresses.Strings, Allocatable: allocatable, Managers: n.managers,
		Recorder: deps.Recorder, Logger: deps.Logger,
	}, runtimehelper.Config{
		NodeName: config.Node.Name, RootDir: config.RootDir, PodLogsDir: config.Logs.PodsDir, HostsFile: config.HostsFile,
		DNS: config.DNS, SwapBehavior: config.Cgroups.SwapBehavior, SingleProcessOOMKill: config.Cgroups.SingleProcessOOMKill,
		NoCPUQuota: config.Cgroups.NoCPUQuota, ExclusiveCPUQuota: config.Cgroups.ExclusiveCPUQuota, CPUQuotaPeriod: config.Cgroups.CPUQuotaPeriod,
		SeccompDefault: config.Pods.SeccompDefault, IDsPerPod: config.Pods.IDsPerPod, MemoryQoS: config.Cgroups.MemoryQoS,
	})
	return services, helper, err
}

func (p *podComponents) newWorkers(base *base, runtime *runtimeComponents, n *nodeComponents, s *storageComponents,
	allocatable func() corev1.ResourceList,
) (*podworker.Manager, error) {
	config, deps := &base.config, &base.deps
	hooks, err := lifecycle.NewRunner(lifecycle.Deps{
		Exec: runtime.client, Recorder: deps.Recorder, Clock: deps.Clock, Metrics: metrics.NewHooks(base.metrics.main), Logger: deps.Logger,
	})
	if err != nil {
		return nil, err
	}
	admitter, err := admission.New(admission.Deps{
		Node: n.manager.Node, FreshNode: newFreshNode(base), Allocatable: allocatable, Volumes: s.volumes.Supported,
		GroupsPolicy: p.helper.GroupsPolicy, Resources: p.helper.Resources,
		// The managers come last: what they allocate belongs to the Pod.
		Handlers:    append(append([]lifecycle.PodAdmitHandler{base.pressure}, p.shutdown.handlers(deps.AdmitHandlers)...), n.managers),
		Managed:     n.managers.Manages,
		CheckResize: n.managers.CheckResize,
	}, admission.Config{
		MaxPods: config.Pods.most(), AllowedUnsafeSysctls: config.Pods.AllowedUnsafeSysctls, DeclaredFeatures: declaredFeatures(),
		Version: config.Node.Version,
	})
	if err != nil {
		return nil, err
	}
	return podworker.New(podworker.Deps{
		Runtime: starting.NewRuntime(runtime.client, base.starts), Reader: p.watcher, Images: p.images, Volumes: s.volumes, Statuses: p.mirrors, Probes: p.probes,
		Hooks: hooks, Builder: p.helper, Admitter: metrics.InstrumentAdmitter(base.metrics.main, admitter), Preemptor: admitter, Signals: base.signals,
		OnPodGone: base.podEvents.Removed, OnPodReleased: n.managers.Release, Allocations: n.allocations, Metrics: base.metrics.pods, Timeline: deps.Timeline,
		Tracer: base.tracer(), Recorder: deps.Recorder, Logger: deps.Logger, Clock: deps.Clock,
	}, podworker.Config{
		RuntimeName: runtime.name.get, HostIPs: n.addresses.Strings, MaxBackoff: config.Pods.MaxBackoff,
		CountMemory:  config.Cgroups.MemoryQoS.Reserves(),
		ResyncPeriod: config.Pods.SyncPeriod,
	})
}

// newFreshNode returns the function that reads the Node from the API server.
func newFreshNode(base *base) func() (*corev1.Node, error) {
	return func() (*corev1.Node, error) {
		ctx, cancel := context.WithTimeout(base.ctx, freshNodeTimeout)
		defer cancel()
		node, err := base.deps.Client.CoreV1().Nodes().Get(ctx, base.config.Node.Name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read Node %q: %w", base.config.Node.Name, err)
		}
		return node, nil
	}
}
