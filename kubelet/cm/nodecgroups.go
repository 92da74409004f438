package cm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/cri"
)

// enforceRetry is how long after a failure the limits of all Pods are set again: memory in use cannot be taken away, and
// the kernel does not notify when it is freed.
const enforceRetry = time.Minute

const resourcePID = corev1.ResourceName("pid")

// RuntimeConfigurer returns the container runtime's configuration. *cri.Client is one.
type RuntimeConfigurer interface {
	RuntimeConfig(ctx context.Context, in *runtimeapi.RuntimeConfigRequest, opts ...grpc.CallOption,
	) (*runtimeapi.RuntimeConfigResponse, error)
}

// NodeCgroupsConfig holds the values of NodeCgroups.
type NodeCgroupsConfig struct {
	// Driver is used where the runtime does not report its cgroup driver; cgroupfs if empty.
	Driver Driver
	// Enforcement says what is reserved and enforced.
	Enforcement Enforcement
	// FailCgroupV1 and FailSwapOn reject a machine that has only cgroup v1, or swap.
	FailCgroupV1, FailSwapOn bool
	// SingleProcessOOMKill and MemoryQoS are checked against what the machine can do.
	SingleProcessOOMKill *bool
	MemoryQoS            bool
}

// NodeCgroupsDeps holds what NodeCgroups need; all are required.
type NodeCgroupsDeps struct {
	Cgroups *Manager
	Runtime RuntimeConfigurer
	// Capacity returns the node's CPU and memory, MaxPIDs how many processes it can have, and Swap its swap in bytes.
	Capacity func() (corev1.ResourceList, error)
	MaxPIDs  func() (int64, error)
	Swap     func() (int64, error)
	// Node is the object of the events.
	Node     *corev1.ObjectReference
	Recorder record.EventRecorder
	Clock    clock.Clock
	Logger   *slog.Logger
}

func (d *NodeCgroupsDeps) validate() error {
	for _, dep := range []struct {
		name    string
		missing bool
	}{
		{"Cgroups", d.Cgroups == nil}, {"Runtime", d.Runtime == nil}, {"Capacity", d.Capacity == nil}, {"MaxPIDs", d.MaxPIDs == nil},
		{"Swap", d.Swap == nil}, {"Node", d.Node == nil}, {"Recorder", d.Recorder == nil}, {"Clock", d.Clock == nil},
		{"Logger", d.Logger == nil},
	} {
		if dep.missing {
			return errors.New("cm: NodeCgroupsDeps." + dep.name + " is required")
		}
	}
	return nil
}

// NodeCgroups sets up the cgroups above all Pods once the runtime has reported its cgroup driver, and enforces node
// allocatable.
type NodeCgroups struct {
	config NodeCgroupsConfig
	deps   NodeCgroupsDeps
	ready  chan struct{} // closed when the cgroups exist
	// outdated is whether the runtime does not report its cgroup driver.
	outdated atomic.Bool
}

// requiresDriver is the release of Kubernetes whose kubelet needs a runtime that reports its cgroup driver (KEP-4033).
const requiresDriver = "1.37.0"

var losingSupport = prometheus.NewDesc("kubelet_cri_losing_support",
	"The Kubernetes version that the container runtime is too old for", []string{"version"}, nil)

var _ prometheus.Collector = (*NodeCgroups)(nil)

// Describe implements prometheus.Collector.
func (n *NodeCgroups) Describe(out chan<- *prometheus.Desc) { out <- losingSupport }

// Collect implements prometheus.Collector. There is a metric only if the runtime is outdated.
func (n *NodeCgroups) Collect(out chan<- prometheus.Metric) {
	if n.outdated.Load() {
		out <- prometheus.MustNewConstMetric(losingSupport, prometheus.GaugeValue, 1, requiresDriver)
	}
}

// NewNodeCgroups returns NodeCgroups.
func NewNodeCgroups(deps NodeCgroupsDeps, config NodeCgroupsConfig) (*NodeCgroups, error) {
	if err := deps.validate(); err != nil {
		return nil, err
	}
	if err := config.Enforcement.Validate(); err != nil {
		return nil, fmt.Errorf("cm: %w", err)
	}
	return &NodeCgroups{config: config, deps: deps, ready: make(chan struct{})}, nil
}

// Ready is closed when the cgroups above all Pods exist.
func (n *NodeCgroups) Ready() <-chan struct{} { return n.ready }

// Wait returns when the cgroups above all Pods exist, or with an error when ctx ends.
func (n *NodeCgroups) Wait(ctx context.Context) error {
	select {
	case <-n.ready:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the cgroup driver of the container runtime: %w", context.Cause(ctx))
	}
}

// Preflight returns an error for a machine that the configuration rejects.
func (n *NodeCgroups) Preflight() error {
	unified := cgroups.IsCgroup2UnifiedMode()
	if n.config.FailCgroupV1 && !unified {
		return errors.New("failCgroupV1: this machine has only cgroup v1: boot it with cgroup v2, or set failCgroupV1 to false")
	}
	if single := n.config.SingleProcessOOMKill; single != nil && !*single && !unified {
		return errors.New("singleProcessOOMKill: false needs cgroup v2, which this machine does not have")
	}
	n.warnCgroupV1(unified)
	if n.config.MemoryQoS && !unified {
		n.deps.Logger.Warn("MemoryQoS has no effect: it needs cgroup v2, which this machine does not have")
	}
	if !n.config.FailSwapOn {
		return nil
	}
	swap, err := n.deps.Swap()
	if err != nil {
		return err
	}
	if swap > 0 {
		return fmt.Errorf("failSwapOn: this machine has %d bytes of swap: turn it off (swapoff -a), or set failSwapOn to false", swap)
	}
	return nil
}

// warnCgroupV1 records an event on a machine that has only cgroup v1. Pods run there all the same.
func (n *NodeCgroups) warnCgroupV1(unified bool) {
	if !unified {
		n.deps.Recorder.Event(n.deps.Node, corev1.EventTypeWarning, "CgroupV1",
			"This machine has only cgroup v1, whose support Kubernetes is about to drop: boot it with cgroup v2")
	}
}

// Setup creates the cgroups above all Pods, with the runtime's cgroup driver. It is called on each connection to the
// runtime, by one goroutine; no Pod is prepared before it has succeeded once. A runtime that is unavailable again is no
// error; one that does not say its driver otherwise is, because with another one no container would be below its Pod's cgroup.
func (n *NodeCgroups) Setup(ctx context.Context) error {
	driver, err := n.detectDriver(ctx)
	if cri.IsUnavailable(err) || ctx.Err() != nil {
		return nil
	}
	select {
	case <-n.ready:
		if used := n.deps.Cgroups.Driver(); err == nil && driver != used {
			n.deps.Logger.Error("container runtime has changed its cgroup driver; containers may escape the limits of their "+
				"Pods until the kubelet restarts", "driver", driver, "used", used)
		}
		return nil
	default:
	}
	if err != nil {
		return err
	}
	n.deps.Cgroups.SetDriver(driver)
	if err := n.deps.Cgroups.EnsureRoot(ctx); err != nil {
		return fmt.Errorf("create cgroups of Pods with driver %s: %w", driver, err)
	}
	if err := n.enforceReserved(ctx); err != nil {
		return err
	}
	close(n.ready)
	return nil
}

// detectDriver returns the runtime's cgroup driver, or the configured one if the runtime does not report one.
func (n *NodeCgroups) detectDriver(ctx context.Context) (Driver, error) {
	configured := n.config.Driver
	if configured == "" {
		configured = DriverCgroupfs
	}
	resp, err := n.deps.Runtime.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
	if err != nil && !cri.IsUnimplemented(err) {
		return "", fmt.Errorf("read the cgroup driver of the container runtime: %w", err)
	}
	if err != nil {
		n.outdated.Store(true)
		n.deps.Logger.Warn("the container runtime does not report its cgroup driver, so the configured one is used: update the runtime before upgrading Kubernetes",
			"driver", configured, "required-by", requiresDriver)
		return configured, nil
	}
	if resp.Linux == nil {
		return configured, nil
	}
	detected := DriverSystemd
	if resp.Linux.CgroupDriver == runtimeapi.CgroupDriver_CGROUPFS {
		detected = DriverCgroupfs
	}
	if detected != configured && n.config.Driver != "" {
		n.deps.Logger.Warn("using the container runtime's cgroup driver instead of the configured one",
			"driver", detected, "configured", configured)
	}
	return detected, nil
}

// enforceReserved limits the node's own daemons to what is reserved for them, where that is configured. That is never
// the default, so a failure is an error.
func (n *NodeCgroups) enforceReserved(ctx context.Context) error {
	for _, r := range n.config.Enforcement.reservations() {
		amounts, enforced := r.limits(&n.config.Enforcement)
		if !enforced {
			continue
		}
		if err := n.deps.Cgroups.EnforceReserved(ctx, r.cgroup, amounts); err != nil {
			n.deps.Recorder.Eventf(n.deps.Node, corev1.EventTypeWarning, "FailedNodeAllocatableEnforcement",
				"Failed to enforce %s Reserved Cgroup Limits on %q: %v", r.title, r.cgroup, err)
			return fmt.Errorf("enforceNodeAllocatable: limit %s %q to its reservation: %w", r.cgroupField, r.cgroup, err)
		}
		n.deps.Recorder.Eventf(n.deps.Node, corev1.EventTypeNormal, "NodeAllocatableEnforced",
			"Updated limits on %s reserved cgroup %s", strings.ToLower(r.title), r.cgroup)
	}
	return nil
}

// Start limits all Pods together to node allocatable, where that is configured. A machine on which that fails is used
// all the same; Start retries until it succeeds or ctx ends.
func (n *NodeCgroups) Start(ctx context.Context) error {
	if !n.config.Enforcement.Enforces(EnforcePods) {
		return nil
	}
	if n.Wait(ctx) != nil {
		return nil
	}
	for {
		limits, err := n.allocatable()
		if err == nil {
			err = n.deps.Cgroups.EnforceAllocatable(ctx, limits)
		}
		if err == nil {
			n.deps.Recorder.Event(n.deps.Node, corev1.EventTypeNormal, "NodeAllocatableEnforced",
				"Updated Node Allocatable limit across pods")
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		n.deps.Logger.Warn("failed to enforce node allocatable; retrying", "error", err, "retry", enforceRetry)
		n.deps.Recorder.Eventf(n.deps.Node, corev1.EventTypeWarning, "FailedNodeAllocatableEnforcement",
			"Failed to update Node Allocatable Limits %q: %v", n.deps.Cgroups.config.CgroupRoot, err)
		select {
		case <-n.deps.Clock.After(enforceRetry):
		case <-ctx.Done():
			return nil
		}
	}
}

// allocatable returns what all Pods together may use: the node's capacity without what is reserved.
func (n *NodeCgroups) allocatable() (corev1.ResourceList, error) {
	capacity, err := n.deps.Capacity()
	if err != nil {
		return nil, err
	}
	maxPIDs, err := n.deps.MaxPIDs()
	if err != nil {
		return nil, err
	}
	amounts := corev1.ResourceList{
		corev1.ResourceCPU: capacity[corev1.ResourceCPU], corev1.ResourceMemory: capacity[corev1.ResourceMemory],
	}
	if maxPIDs > 0 {
		amounts[resourcePID] = *resource.NewQuantity(maxPIDs, resource.DecimalSI)
	}
	for name, all := range amounts {
		left := all.DeepCopy()
		for _, reserved := range []corev1.ResourceList{n.config.Enforcement.KubeReserved, n.config.Enforcement.SystemReserved} {
			left.Sub(reserved[name])
		}
		if left.Sign() <= 0 {
			return nil, fmt.Errorf("kubeReserved and systemReserved leave nothing of the node's %s (%s) to Pods", name, all.String())
		}
		amounts[name] = left
	}
	return amounts, nil
}
