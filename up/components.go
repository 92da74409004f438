package up

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/berth-dev/berth/attachdetach"
	"github.com/berth-dev/berth/internal/filelock"
	"github.com/berth-dev/berth/internal/tracing"
	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/memory"
	"github.com/berth-dev/berth/kubelet/network"
	"github.com/berth-dev/berth/kubelet/settings"
	"github.com/berth-dev/berth/kubelet/volumemanager"
	"github.com/berth-dev/berth/replicaset"
	"github.com/berth-dev/berth/timeline/traces"
	"github.com/berth-dev/berth/version"
)

// streamIdleTimeout is the kubelet's default.
const streamIdleTimeout = 4 * time.Hour

// nodeFirst is how long the other components wait for the Node at a first start: they compete with it for the processors, and have little
// to do before it is ready. But a Node may need them, as one whose network comes from Pods.
const nodeFirst = 2 * time.Second

// With Config.StartLock, starts of several clusters compete: togetherFirst is the limit in place of nodeFirst, and othersFirst how long the
// other components wait for the Nodes of those clusters.
const togetherFirst, othersFirst = 10 * time.Second, 3 * time.Second

// servicesFirst is how long snapshots wait for what Pods reach each other by.
const servicesFirst = 10 * time.Second

// attachdetachName is the name of the component that also watches claims.
const attachdetachName = "attachdetach"

// components are the parts that need the control plane and the container runtime. They stop in the order controllers,
// kubelet, Pods, services.
type components struct {
	cluster     *Cluster
	controllers *group
	node        *group
	services    *group // what Pods reach each other by
	kubelet     currentKubelet
	claimEvents claimEvents
	tracing     *sdktrace.TracerProvider // nil if the environment requests no traces
	defaults    *readiness               // of the objects that every cluster has
}

// currentKubelet is the kubelet that runs now, or ran last.
type currentKubelet struct {
	mu sync.Mutex
	k  *agent.Agent
}

// startComponents starts Berth's own components; those that are not of the node itself, at a first start, when
// the Node is ready.
func (c *Cluster) startComponents(ctx context.Context) (*components, error) {
	u := &components{cluster: c, controllers: newGroup(ctx), node: newGroup(ctx), services: newGroup(ctx), defaults: newReadiness()}
	c.kubelet.Store(&u.kubelet)
	c.superviseIn(u.node, "explain socket", c.newTimelineServer) // by it commands know that the cluster runs
	if c.config.APIOnly {
		u.defaults.set(nil)
		return u, nil
	}
	if c.config.Member == nil {
		c.superviseIn(u.node, "timeline", c.newAPIWatch)
	}
	c.superviseIn(u.node, "stage metrics", c.newStageMetrics)
	if tracing.Enabled(os.Getenv) {
		var err error
		if u.tracing, err = tracing.FromEnvironment(ctx, "berth", traces.IDs()); err != nil {
			return nil, err
		}
		c.superviseIn(u.node, "traces", u.newTraceExporter)
	}
	u.startParts(func(p part) bool { return p.layer == u.node })
	if c.config.Member != nil || c.isRestart() || !c.runs("kubelet") {
		u.startOthers()
		return u, nil
	}
	u.controllers.start(func(ctx context.Context) {
		c.giveWay(ctx)
		if ctx.Err() == nil {
			u.startOthers()
		}
	})
	return u, nil
}

// giveWay waits until the Node is ready, and those of the clusters that start at the same time, or for as long as a start may be delayed.
func (c *Cluster) giveWay(ctx context.Context) {
	limit := nodeFirst
	if c.StartLock != "" {
		limit = togetherFirst
	}
	first, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_ = c.waitNodeReady(first) // reportNode reports why it is not
	if c.StartLock == "" {
		return
	}
	others, cancel := context.WithTimeout(ctx, othersFirst)
	defer cancel()
	if err := filelock.AwaitUnshared(others, c.StartLock); err != nil && others.Err() == nil {
		c.logger.Warn("failed to wait for the clusters that start at the same time", "error", err)
	}
}

// startParts starts the wanted components of this machine.
func (u *components) startParts(isWanted func(p part) bool) {
	c := u.cluster
	for _, part := range u.parts() {
		if isWanted(part) && c.runs(strings.ReplaceAll(part.name, " ", "-")) {
			c.superviseIn(part.layer, part.name, part.make)
		}
	}
}

// startOthers starts what is not of the node itself, and applies the objects that every cluster has. What serves snapshots comes last: its
// custom resources are the most work for an API server that starts, and nothing of the start needs them.
func (u *components) startOthers() {
	c := u.cluster
	u.startParts(func(p part) bool { return p.layer != u.node && p.name != snapshotsName })
	if c.config.Member != nil {
		u.defaults.set(nil)
		return
	}
	c.superviseIn(u.services, resolversName, c.newResolvers)
	isSnapshots := func(p part) bool { return p.name == snapshotsName }
	if c.isRestart() {
		u.startParts(isSnapshots)
		u.defaults.set(nil) // nothing waits for them
		c.superviseIn(u.node, "default objects", c.newDefaultObjects)
		return
	}
	u.controllers.start(func(ctx context.Context) {
		first, cancel := context.WithTimeout(ctx, servicesFirst)
		defer cancel()
		_ = c.eachService(first, func(string, error) {}) // waitServices reports what failed
		if ctx.Err() == nil {
			u.startParts(isSnapshots)
		}
	})
	u.node.start(func(ctx context.Context) {
		err := c.untilAnswered(ctx, c.applyDefaultObjects)
		if err != nil {
			err = fmt.Errorf("apply the cluster's own objects: %w", err)
		}
		u.defaults.set(err)
	})
}

// part is a component that runs in this process, or supervises a program.
type part struct {
	name  string
	layer *group
	make  func() (runFunc, error)
}

// parts are the components of this machine.
func (u *components) parts() []part {
	c := u.cluster
	if c.config.Member != nil {
		return []part{
			{"kubelet", u.node, u.newMemberKubelet}, {firewallName, u.node, c.newFirewall}, {tablesName, u.node, c.newTables}, {proxyName, u.services, c.newProxy}, {routesName, u.services, c.newPodRoutes},
			{announcerName, u.services, c.newAnnouncer},
		}
	}
	return []part{
		{"kubelet", u.node, u.newKubelet}, {"csi driver", u.node, c.newCSIDriver}, {firewallName, u.node, c.newFirewall}, {tablesName, u.node, c.newTables},
		{"provision", u.controllers, c.newProvisioner}, {"csi provisioner", u.controllers, c.newCSIProvisioner},
		{"csi attacher", u.controllers, c.newCSIAttacher}, {attachdetachName, u.controllers, u.newAttachDetachController},
		{"replicaset", u.controllers, c.newReplicaSetController}, {snapshotsName, u.controllers, c.newSnapshotBinders},
		{approverName, u.controllers, c.newApprover}, {loadBalancerName, u.controllers, c.newLoadBalancer},
		{proxyName, u.services, c.newProxy}, {dnsName, u.services, c.newDNS}, {routesName, u.services, c.newPodRoutes},
		{announcerName, u.services, c.newAnnouncer}, {pageName, u.services, c.newPageServer},
	}
}

// runs reports whether this process runs an optional component.
func (c *Cluster) runs(component string) bool {
	return !c.config.APIOnly && !slices.Contains(c.config.Without, component)
}

// stop stops the controllers first, so that they create no Pods which the kubelet is about to stop, then the kubelet,
// then the Pods, and last what Pods reach each other by.
func (u *components) stop(ctx context.Context) error {
	defer u.stopTracing(ctx)
	defer u.services.stop()
	u.controllers.stop()
	u.node.stop()
	u.cluster.kubelet.Store(nil)
	u.kubelet.mu.Lock() // for good: nothing replaces it any more
	k := u.kubelet.k
	u.kubelet.mu.Unlock()
	if k == nil {
		return nil
	}
	return errors.Join(u.stopPods(ctx, k), k.Close())
}

// stopPods stops the Pods of a kubelet that has ended, unless they are to run on.
func (u *components) stopPods(ctx context.Context, k *agent.Agent) error {
	plan := u.cluster.stopPlan
	if plan.keepPods {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, plan.podsTimeout())
	defer cancel()
	// containerd may be restarting: without it Pods cannot be stopped in order.
	if config := u.cluster.runtime.Load(); config != nil {
		if err := config.WaitReady(ctx, u.cluster.clock); err != nil {
			u.cluster.logger.Warn("containerd is not ready; stopping without it", "error", err)
		}
	}
	ordinary, critical := plan.grace()
	if err := k.StopPodsWithin(ctx, ordinary, critical); err != nil {
		return fmt.Errorf("stop the Pods: %w", err)
	}
	return nil
}

// stopTracing sends the last traces, within OTEL_EXPORTER_OTLP_TIMEOUT.
func (u *components) stopTracing(ctx context.Context) {
	if u.tracing == nil {
		return
	}
	if err := u.tracing.Shutdown(ctx); err != nil {
		u.cluster.logger.Warn("cannot send the last traces", "error", err)
	}
}

// newKubelet returns the kubelet of this machine.
func (u *components) newKubelet() (runFunc, error) {
	c := u.cluster
	client, err := c.client("node")
	if err != nil {
		return nil, err
	}
	// The node's Lease has a connection of its own, so that a burst of other requests does not delay its renewal.
	leases, err := c.client("node")
	if err != nil {
		return nil, err
	}
	enforcement, err := c.enforcement()
	if err != nil {
		return nil, err
	}
	address := net.IP(c.NodeIP().AsSlice())
	addresses := []net.IP{address}
	if second := c.NodeIP6(); second.IsValid() {
		addresses = append(addresses, second.AsSlice())
	}
	var claims volumemanager.ClaimSource
	if c.runs(attachdetachName) {
		claims = &u.claimEvents
	}
	if err := c.writePodResolvConf(); err != nil {
		return nil, err
	}
	dns := network.DNS{ResolvConf: c.podResolvConf(), ClusterDomain: clusterDomain}
	if c.runs(dnsName) {
		dns.ClusterDNS = []string{c.Gateway.String()}
	}
	config := agent.Config{
		Node: agent.NodeConfig{
			Name: c.NodeName, IPs: addresses, Version: version.Kubelet(),
		},
		RootDir: c.KubeletDir(),
		Logs: agent.LogsConfig{
			PodsDir: c.PodLogsDir(), ContainersDir: c.ContainerLogsDir(),
		},
		Eviction: c.evictionConfig(), Shutdown: agent.ShutdownConfig{Periods: c.ShutdownPeriods},
		Cgroups: agent.CgroupConfig{
			Root: c.CgroupRoot(), PodPidsLimit: c.Resources.PodPidsLimit, Enforcement: enforcement,
			SwapBehavior: cm.SwapBehavior(c.Resources.SwapBehavior),
		},
		Pods:    agent.PodConfig{SeccompDefault: c.SeccompDefault},
		Runtime: agent.RuntimeConfig{Endpoint: "unix://" + c.ContainerdSocket()},
		Static:  agent.StaticConfig{Path: c.StaticPods},
		Server: agent.ServerConfig{
			Addresses: []string{net.JoinHostPort(address.String(), strconv.Itoa(kubeletPort))}, Port: kubeletPort,
			CertFile: c.PKI("kubelet-server.crt"), KeyFile: c.PKI("kubelet-server.key"), ClientCAFile: c.PKI("ca.crt"),
			StreamIdleTimeout: streamIdleTimeout,
			LogDir:            filepath.Dir(c.PodLogsDir()), TLS: kubeletTLS(),
		},
		DNS: dns, Features: settings.Features(nil),
	}
	if err := c.applyKubeletConfig(&config); err != nil {
		return nil, err
	}
	k, err := agent.New(agent.Deps{
		TracerProvider: u.tracerProvider(),
		Client:         client, LeaseClient: leases, Claims: claims, Timeline: c.timeline, Logger: c.logger, Clock: c.clock,
		Collectors: []prometheus.Collector{c.stageMetrics}, Gatherers: []prometheus.Gatherer{&c.controllerMetrics}, OnIdle: memory.Release, Exits: c.exitRecords,
	}, config)
	if err != nil {
		return nil, err
	}
	if err := u.kubelet.replace(k); err != nil {
		c.logger.Warn("failed to close the previous kubelet", "error", err)
	}
	return k.Start, nil
}

// tracerProvider returns the provider of the kubelet's spans, nil if there are no traces.
func (u *components) tracerProvider() trace.TracerProvider {
	if u.tracing == nil {
		return nil
	}
	return u.tracing
}

// replace sets the current kubelet and closes the one before.
func (c *currentKubelet) replace(k *agent.Agent) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.k
	c.k = k
	if old == nil {
		return nil
	}
	return old.Close()
}

// newAttachDetachController returns the controller that attaches volumes to nodes. It forwards claim events to the
// kubelet.
func (u *components) newAttachDetachController() (runFunc, error) {
	c := u.cluster
	client, err := c.client("attachdetach")
	if err != nil {
		return nil, err
	}
	controller, err := attachdetach.New(attachdetach.Deps{
		Client: client, OnClaimChanged: u.claimEvents.notify, Timeline: c.timeline, Logger: c.logger, Clock: c.clock,
		Registerer: c.controllerMetrics.New(attachdetachName),
	}, attachdetach.Config{})
	if err != nil {
		return nil, err
	}
	return controller.Start, nil
}

// newReplicaSetController returns the ReplicaSet controller.
func (c *Cluster) newReplicaSetController() (runFunc, error) {
	client, err := c.client("replicaset")
	if err != nil {
		return nil, err
	}
	controller, err := replicaset.New(replicaset.Deps{
		Client: client, Timeline: c.timeline, Logger: c.logger, Clock: c.clock, Registerer: c.controllerMetrics.New("replicaset"),
	}, replicaset.Config{})
	if err != nil {
		return nil, err
	}
	return controller.Start, nil
}
