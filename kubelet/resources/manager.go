package resources

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/pluginmanager"
	"github.com/berth-dev/berth/kubelet/resources/claims"
	"github.com/berth-dev/berth/kubelet/resources/cpus"
	"github.com/berth-dev/berth/kubelet/resources/devices"
	"github.com/berth-dev/berth/kubelet/resources/hints"
	"github.com/berth-dev/berth/kubelet/resources/memory"
	"github.com/berth-dev/berth/kubelet/resources/metrics"
	"github.com/berth-dev/berth/kubelet/resources/rejection"
)

// provider has one kind of resources.
type provider interface {
	// Begin starts an admission, Rollback forgets what it has allocated.
	Begin()
	Rollback()
	// Hints and PodHints return on which NUMA nodes a container, or all of a Pod, could have what it requests.
	Hints(pod *corev1.Pod, c *corev1.Container) hints.ByResource
	PodHints(pod *corev1.Pod) hints.ByResource
	// Allocate gives a container what it requests, if possible of the hint's nodes.
	Allocate(pod *corev1.Pod, c *corev1.Container, hint hints.Hint) error
	// Free describes how much of a resource is free on which NUMA nodes, for a message.
	Free(resource string) string
}

// Manager gives containers their resources when their Pod is admitted, and takes them back when it has ended. It is safe for
// concurrent use. It has many fields because it joins the managers of all kinds of resources.
type Manager struct {
	deps    Deps
	config  Config
	merger  *hints.Merger
	metrics *metrics.Metrics

	mu sync.Mutex // serialises admissions and releases
	// providers are asked in this order.
	providers []provider
	cpus      *cpus.Manager
	memory    *memory.Manager
	devices   *devices.Manager
	claims    *claims.Manager
	// opened says that the state files have been read; lost are those of cpus and memory whose file has none of the decisions that an earlier
	// process may have made.
	opened bool
	lost   []provider
	clock  clock.Clock
	placed placements
	// placing guards placed; mu is not locked while it is.
	placing sync.Mutex
	// unreleased are Pods that have ended and whose resources could not be taken back, because a file could not be written.
	unreleased map[types.UID]bool
}

var _ lifecycle.PodAdmitHandler = (*Manager)(nil)

// New returns a Manager. It reads the machine, and changes nothing; Open comes before all other methods.
func New(deps Deps, config Config) (*Manager, error) {
	if err := complete(&deps, &config); err != nil {
		return nil, err
	}
	m := &Manager{
		deps: deps, config: config, merger: hints.NewMerger(config.Policy, deps.Topology, config.PreferClosest), metrics: metrics.New(),
		unreleased: map[types.UID]bool{}, placed: newPlacements(), clock: deps.Clock,
	}
	if err := m.newManagers(); err != nil {
		return nil, err
	}
	m.providers = []provider{m.devices, m.cpus, m.memory}
	if m.config.Policy != hints.None {
		m.metrics.ShowNodes()
	}
	return m, nil
}

// Open reads the state files, once. An error says that they are not those of this configuration or this machine.
func (m *Manager) Open() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.open()
}

// open is Open. The caller holds mu.
func (m *Manager) open() error {
	if m.opened {
		return nil
	}
	m.lost = nil
	for _, with := range []interface {
		provider
		Open() (found bool, err error)
		Static() bool
	}{m.cpus, m.memory} {
		found, err := with.Open()
		if err != nil {
			return err
		}
		if !found && with.Static() {
			m.lost = append(m.lost, with)
		}
	}
	if err := m.claims.Open(); err != nil {
		return err
	}
	if err := m.devices.Open(); err != nil {
		return err
	}
	m.opened = true
	return nil
}

// Start serves device plugins and DRA drivers until ctx ends.
func (m *Manager) Start(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(contain.Func("resources.devices", "", func() error { return m.devices.Start(ctx) }))
	group.Go(contain.Func("resources.claims", "", func() error { return m.claims.Start(ctx) }))
	return group.Wait()
}

// DevicePlugins handles device plugins that are found by their socket.
func (m *Manager) DevicePlugins() pluginmanager.Handler { return m.devices }

// DRAPlugins handles DRA drivers.
func (m *Manager) DRAPlugins() pluginmanager.Handler { return m.claims }

// Collectors returns the metrics.
func (m *Manager) Collectors() []prometheus.Collector {
	return append(m.metrics.Collectors(), m.claims.Collectors()...)
}

// Admit implements lifecycle.PodAdmitHandler. All that the Pod's containers request is theirs afterwards, or nothing.
func (m *Manager) Admit(attrs *lifecycle.PodAdmitAttributes) lifecycle.PodAdmitResult {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.retryReleases()
	var err error
	if !m.config.plain() {
		err = m.open() // a Pod may come before the start
	}
	if err != nil {
		return refuse(err)
	}
	return m.decide(func() error { return m.admit(attrs.Pod, m.providers) })
}

// CountRefused counts a Pod that the node has too few resources for as one that was decided about, and gives it nothing. Upstream's managers
// decide before the resources of the node are compared, and their metrics have such Pods.
func (m *Manager) CountRefused(pod *corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.config.plain() || m.open() != nil {
		return
	}
	m.decide(func() error {
		defer m.rollback()
		m.begin()
		return m.allocate(pod, m.providers)
	})
}

// Readmit gives a Pod that an earlier process has admitted what the state files do not have any more. Its containers are moved to it. Where
// the files cannot be used the kubelet does not start, and the Pod runs on.
func (m *Manager) Readmit(pod *corev1.Pod) lifecycle.PodAdmitResult {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open() != nil {
		return lifecycle.PodAdmitResult{Admit: true}
	}
	m.claims.Readmit(pod)
	m.devices.Readmit(pod)
	if len(m.lost) == 0 {
		return lifecycle.PodAdmitResult{Admit: true}
	}
	return m.decide(func() error { return m.admit(pod, m.lost) })
}

// decide measures a decision about a Pod. The caller holds mu.
func (m *Manager) decide(admit func() error) lifecycle.PodAdmitResult {
	start := time.Now()
	m.metrics.TopologyRequests.Inc()
	err := admit()
	m.metrics.TopologyDuration.Observe(float64(time.Since(start)) / float64(time.Millisecond))
	if err == nil {
		return lifecycle.PodAdmitResult{Admit: true}
	}
	if m.config.Policy != hints.None {
		m.metrics.TopologyErrors.Inc()
	}
	return refuse(err)
}

func refuse(err error) lifecycle.PodAdmitResult {
	refused := rejection.From(err)
	return lifecycle.PodAdmitResult{Reason: refused.Reason, Message: refused.Message}
}

// admit gives a Pod what the providers have of what it requests. The caller holds mu.
func (m *Manager) admit(pod *corev1.Pod, providers []provider) error {
	m.begin()
	if err := m.allocate(pod, providers); err != nil {
		m.rollback()
		return err
	}
	return m.commit(pod.UID)
}

func (m *Manager) begin() {
	for _, p := range m.providers {
		p.Begin()
	}
}

// rollback forgets what has been allocated since begin.
func (m *Manager) rollback() {
	for _, p := range m.providers {
		p.Rollback()
	}
}

// commit stores the allocations of an admission. After an error none of them holds.
func (m *Manager) commit(uid types.UID) error {
	poolChanged, err := m.cpus.Commit()
	if err == nil {
		err = m.memory.Commit()
	}
	if err != nil {
		m.rollback()
		return errors.Join(err, m.release(uid))
	}
	if poolChanged {
		m.deps.OnPoolChanged()
	}
	return nil
}

// allocate allocates what the containers of a Pod request from the providers, on NUMA nodes that suit all.
func (m *Manager) allocate(pod *corev1.Pod, providers []provider) error {
	var hint hints.Hint
	if m.config.PodScope && m.config.Policy != hints.None {
		var err error
		if hint, err = m.merge(metrics.ScopePod, "the Pod", func(p provider) hints.ByResource { return p.PodHints(pod) }); err != nil {
			return err
		}
	}
	for c, kind := range podutil.Containers(&pod.Spec) {
		if kind == podutil.Ephemeral {
			continue
		}
		if !m.config.PodScope && m.config.Policy != hints.None {
			var err error
			of := func(p provider) hints.ByResource { return p.Hints(pod, c) }
			if hint, err = m.merge(metrics.ScopeContainer, fmt.Sprintf("container %q", c.Name), of); err != nil {
				return err
			}
		}
		for _, p := range providers {
			if err := p.Allocate(pod, c, hint); err != nil {
				return err
			}
		}
		if !m.config.PodScope {
			m.countAligned(metrics.ScopeContainer)
		}
	}
	if m.config.PodScope {
		m.countAligned(metrics.ScopePod)
	}
	return nil
}

// countAligned counts an allocation that the policy has aligned.
func (m *Manager) countAligned(scope string) {
	if m.config.Policy == hints.SingleNode {
		m.metrics.Aligned.WithLabelValues(scope, metrics.BoundaryNode).Inc()
	}
}

// merge returns the NUMA nodes for a container or a Pod, the subject.
func (m *Manager) merge(scope, subject string, of func(provider) hints.ByResource) (hints.Hint, error) {
	all := make([]hints.ByResource, 0, len(m.providers))
	for _, p := range m.providers {
		all = append(all, of(p))
	}
	hint, admit := m.merger.Merge(all)
	if !admit {
		if m.config.Policy == hints.SingleNode {
			m.metrics.AlignFailures.WithLabelValues(scope, metrics.BoundaryNode).Inc()
		}
		return hint, rejection.New(rejection.TopologyAffinity, "Resources cannot be allocated with Topology locality: policy %s of the "+
			"topology manager finds no NUMA nodes that suit all resources of %s: %s", m.config.Policy, subject, m.describe(all))
	}
	return hint, nil
}

// describe returns of which NUMA nodes a container or a Pod could have each resource, and how much of it is free. The resources are in the
// order of the providers.
func (m *Manager) describe(all []hints.ByResource) string {
	var parts []string
	for i, resources := range all {
		for name, list := range resources {
			var sets []string
			for _, h := range list {
				sets = append(sets, "{"+h.Nodes.String()+"}")
			}
			if len(sets) == 0 {
				sets = []string{"no nodes"}
			}
			parts = append(parts, fmt.Sprintf("enough %s is free on %s (free: %s)", name, strings.Join(sets, " or "), m.providers[i].Free(name)))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, "; ")
}

// Release takes back what the containers of a Pod have, which must have ended. A Pod that has nothing is no error.
func (m *Manager) Release(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.Placed(uid, nil, func(string) bool { return false })
	if err := m.release(uid); err != nil {
		m.unreleased[uid] = true
		m.deps.Logger.Warn("failed to take back the resources of a Pod; the next admission tries it again", "uid", uid, "error", err)
	}
}

// release is Release. The caller holds mu.
func (m *Manager) release(uid types.UID) error {
	poolChanged, err := m.cpus.Release(string(uid))
	if poolChanged {
		m.deps.OnPoolChanged()
	}
	return errors.Join(err, m.memory.Release(string(uid)), m.devices.Release(string(uid)))
}

// retryReleases releases what could not be released before.
func (m *Manager) retryReleases() {
	for uid := range m.unreleased {
		if m.release(uid) == nil {
			delete(m.unreleased, uid)
		}
	}
}

// Retain takes back what Pods have that are not on the node any more: an earlier process has not seen their end. It is called when all
// Pods that are on the node, or that the runtime has, are known.
func (m *Manager) Retain(has func(uid types.UID) bool) {
	m.readAll()
	for _, uid := range slices.Concat(m.cpus.Pods(), m.memory.Pods(), m.devices.Pods()) {
		if uid := types.UID(uid); !has(uid) {
			m.Release(uid)
		}
	}
	m.claims.Retain(has)
}

// Pin is on which CPUs and memory a container runs, in the form of cpuset cgroups; empty for all.
type Pin struct {
	CPUs, Memory string
	// Exclusive says that no other container runs on the CPUs.
	Exclusive bool
}

// Pin returns where a container runs.
func (m *Manager) Pin(uid types.UID, container string) Pin {
	set, exclusive := m.cpus.Of(string(uid), container)
	return Pin{CPUs: set.String(), Exclusive: exclusive, Memory: m.memory.Nodes(string(uid), container).String()}
}

// HasExclusiveCPUs reports whether a container of the Pod has CPUs of its own.
func (m *Manager) HasExclusiveCPUs(uid types.UID) bool { return m.cpus.HasExclusive(string(uid)) }

// CheckResize returns why the resources of a Pod cannot change while it runs, and upstream's term for the reason; both are empty
// if they can.
func (m *Manager) CheckResize(cpu, memory bool) (message, detail string) {
	switch {
	case cpu && m.cpus.Static():
		return `Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"`, "guaranteed_pod_cpu_manager_static_policy"
	case memory && m.memory.Static():
		return `Resize is infeasible for Guaranteed Pods alongside Memory Manager policy "Static"`, "guaranteed_pod_memory_manager_static_policy"
	}
	return "", ""
}
