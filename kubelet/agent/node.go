package agent

import (
	"context"
	"maps"
	"net"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/subscribers"
	"github.com/berth-dev/berth/kubelet/allocation"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/images/pullrecords"
	"github.com/berth-dev/berth/kubelet/metrics"
	"github.com/berth-dev/berth/kubelet/node"
	"github.com/berth-dev/berth/kubelet/nodeaddress"
	"github.com/berth-dev/berth/kubelet/resources"
	"github.com/berth-dev/berth/kubelet/resources/machine"
)

// freshNodeTimeout bounds how long admission, which checks one Pod after the other, waits for the API server.
const freshNodeTimeout = 2 * time.Second

// nodeComponents are the Node object and the machine behind it.
type nodeComponents struct {
	machine     node.Machine
	addresses   *nodeaddress.Store
	pullRecords *pullrecords.Manager
	manager     *node.Manager
	changes     *subscribers.Set[*corev1.Node] // sends each new state of the Node object
	cgroups     *cm.Manager
	nodeCgroups *cm.NodeCgroups
	allocations *allocation.Store
	managers    *resources.Manager
}

func newNode(base *base, runtime *runtimeComponents) (*nodeComponents, error) {
	config, deps := &base.config, &base.deps
	pullRecords, err := pullrecords.New(pullrecords.Deps{
		CountCheck: base.metrics.images.CountCheck, Clock: deps.Clock, Logger: base.logger("images"),
	}, pullrecords.Config{
		Dir:    filepath.Join(config.RootDir, "image_manager"),
		Policy: config.Images.Verification, Allowlist: config.Images.NotVerified,
	})
	if err != nil {
		return nil, err
	}
	metrics.RegisterPullRecords(base.metrics.main, pullRecords.Counts)
	n := &nodeComponents{
		machine: newMachine(base), addresses: nodeaddress.NewStore(config.Node.IPs), pullRecords: pullRecords,
		changes: &subscribers.Set[*corev1.Node]{}, allocations: allocation.Open(config.RootDir, base.logger("allocations")),
	}
	if n.manager, err = node.New(node.Deps{
		Client: deps.Client, LeaseClient: deps.LeaseClient, Runtime: runtime.client, Machine: n.machine, Recorder: deps.Recorder,
		Clock: deps.Clock, OnNode: n.onNode(deps.OnNode), OnImages: pullRecords.Reconcile, Logger: base.logger("node"),
		Instance:  deps.Instance,
		OnStartup: func(s node.Startup) { base.metrics.nodeStart.Observe(s.Attempted, s.Registered, s.Ready) },
		OnRuntime: func(resp *runtimeapi.StatusResponse) { base.signals.SetNetwork(networkError(resp)) },
		Pressure:  base.pressure.Conditions, Devices: func() (capacity, allocatable corev1.ResourceList) { return n.managers.Devices() },
		First: func() bool { return n.managers.First() },
	}, newNodeConfig(config)); err != nil {
		return nil, err
	}
	if n.managers, err = newManagers(base, n); err != nil {
		return nil, err
	}
	limits := cm.DetectResourceOptions()
	limits.NoCPUQuota, limits.QuotaPeriod = config.Cgroups.NoCPUQuota, config.Cgroups.CPUQuotaPeriod.Microseconds()
	limits.MemoryQoS = config.Cgroups.MemoryQoS
	if !config.Cgroups.ExclusiveCPUQuota {
		limits.HasExclusiveCPUs = n.managers.HasExclusiveCPUs
	}
	durations := cm.NewDurations(deps.Clock)
	base.metrics.main.MustRegister(durations)
	if n.cgroups, err = cm.New(cm.Deps{Durations: durations, Logger: base.logger("cgroups")}, cm.Config{
		CgroupRoot: config.Cgroups.Root, Driver: config.Cgroups.Driver, PodPidsLimit: config.Cgroups.PodPidsLimit,
		Resources: limits,
	}); err != nil {
		return nil, err
	}
	n.nodeCgroups, err = cm.NewNodeCgroups(cm.NodeCgroupsDeps{
		Cgroups: n.cgroups, Runtime: runtime.client, Capacity: n.capacity, MaxPIDs: n.maxPIDs, Swap: n.swap,
		Node: node.Reference(config.Node.Name), Recorder: deps.Recorder, Clock: deps.Clock, Logger: base.logger("cgroups"),
	}, cm.NodeCgroupsConfig{
		Driver: config.Cgroups.Driver, Enforcement: config.Cgroups.Enforcement, FailCgroupV1: config.Cgroups.FailV1,
		FailSwapOn: config.Cgroups.FailSwapOn, SingleProcessOOMKill: config.Cgroups.SingleProcessOOMKill,
		MemoryQoS: config.Cgroups.MemoryQoS != nil,
	})
	if err != nil {
		return nil, err
	}
	base.metrics.main.MustRegister(n.nodeCgroups)
	return n, nil
}

// onNode returns the function that takes each new state of the Node.
func (n *nodeComponents) onNode(also func(*corev1.Node)) func(*corev1.Node) {
	return func(node *corev1.Node) {
		n.changes.Send(node)
		if also != nil {
			also(node)
		}
	}
}

func newNodeConfig(config *Config) node.Config {
	c := &config.Node
	return node.Config{
		Name: c.Name, Hostname: c.Hostname, IPs: c.IPs, Port: config.Server.Port, Version: c.Version, Labels: c.Labels, Taints: c.Taints,
		ProviderID: c.ProviderID, NoRegister: c.NoRegister,
		Cloud:   node.Cloud{External: c.Cloud.External, NodeIPs: c.Cloud.NodeIPs, ChosenIPs: c.Cloud.ChosenIPs},
		MaxPods: ptr.To(config.Pods.most()), LeaseDuration: c.LeaseDuration, UpdateInterval: c.UpdateInterval, ReportInterval: c.ReportInterval,
		MaxImages: c.MaxImages, Thresholds: thresholds(config),
		KubeReserved: config.Cgroups.Enforcement.KubeReserved, SystemReserved: config.Cgroups.Enforcement.SystemReserved,
		DeclaredFeatures: declaredFeatures(),
	}
}

// most returns how many Pods the node takes.
func (c *PodConfig) most() int64 {
	if c.MaxPerCore <= 0 {
		return *c.Max
	}
	return min(*c.Max, c.MaxPerCore*int64(machine.CountCPUs(machine.Config{})))
}

func (n *nodeComponents) capacity() (corev1.ResourceList, error) {
	capacity, _, err := n.manager.Resources()
	return capacity, err
}

func (n *nodeComponents) maxPIDs() (int64, error) {
	usage, err := n.machine.Usage()
	return usage.PIDCapacity, err
}

func (n *nodeComponents) swap() (int64, error) {
	info, err := n.machine.Info()
	return info.Swap, err
}

// newAllocatable returns the function that returns what Pods may use of the node, nil while the machine cannot be read.
func (n *nodeComponents) newAllocatable(base *base) func() corev1.ResourceList {
	return func() corev1.ResourceList {
		_, allocatable, err := n.manager.Resources()
		if err != nil {
			base.deps.Logger.Warn("failed to read the machine's resources", "error", err)
			return allocatable
		}
		_, devices := n.managers.Devices()
		if len(devices) == 0 {
			return allocatable
		}
		allocatable = maps.Clone(allocatable)
		maps.Copy(allocatable, devices)
		return allocatable
	}
}

// addressWatcher updates what depends on the node's addresses when they change.
type addressWatcher struct{ watcher *nodeaddress.Watcher } // nil if addresses never change

// Start watches the addresses until ctx ends.
func (w *addressWatcher) Start(ctx context.Context) error {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Start(ctx)
}

func newAddressWatcher(base *base, n *nodeComponents, pods *podComponents, setServerAddresses func([]string)) (*addressWatcher, error) {
	if base.deps.FindIPs == nil {
		return &addressWatcher{}, nil
	}
	watcher, err := nodeaddress.New(nodeaddress.Deps{
		Store: n.addresses, Find: base.deps.FindIPs, Clock: base.deps.Clock, Logger: base.logger("addresses"),
		OnChange: func(ips []net.IP) {
			// The node is reachable at its new address before others learn of it.
			setServerAddresses(base.config.Server.addressesAt(base.config.Node.IPs[0], ips[0]))
			if base.deps.OnNodeIPsChanged != nil {
				base.deps.OnNodeIPsChanged(ips)
			}
			n.manager.SetIPs(ips)
			for _, pod := range pods.workers.Pods() {
				base.signals.Wake(pod.UID) // its status has the node's address
			}
		},
	})
	return &addressWatcher{watcher}, err
}

// addressesAt returns the addresses to listen on, with the node's new primary IP in place of the one before.
func (c *ServerConfig) addressesAt(before, now net.IP) []string {
	moved := make([]string, 0, len(c.Addresses))
	for _, address := range c.Addresses {
		if host, port, err := net.SplitHostPort(address); err == nil && before.Equal(net.ParseIP(host)) {
			address = net.JoinHostPort(now.String(), port)
		}
		moved = append(moved, address)
	}
	return moved
}
