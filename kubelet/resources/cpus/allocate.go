package cpus

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/cpuset"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/qos"
	"github.com/berth-dev/berth/kubelet/resources/hints"
	"github.com/berth-dev/berth/kubelet/resources/metrics"
	"github.com/berth-dev/berth/kubelet/resources/rejection"
)

// Requested returns how many CPUs of its own a container is to have: those of a Guaranteed Pod's container that requests
// whole ones, but none in a Pod with resources of its own.
func Requested(pod *corev1.Pod, c *corev1.Container) int {
	if qos.Class(pod) != corev1.PodQOSGuaranteed || resourcehelper.IsPodLevelResourcesSet(pod) {
		return 0
	}
	request := c.Resources.Requests[corev1.ResourceCPU]
	if request.Value()*1000 != request.MilliValue() {
		return 0
	}
	return int(request.Value())
}

// podRequested returns how many CPUs the containers of a Pod have at most at the same time.
func podRequested(pod *corev1.Pod) int {
	sidecars, most, regular := 0, 0, 0
	for c, kind := range podutil.Containers(&pod.Spec) {
		n := Requested(pod, c)
		switch {
		case kind == podutil.Ephemeral:
		case podutil.IsSidecar(c, kind):
			sidecars += n
		case kind == podutil.Regular:
			regular += n
		default:
			most = max(most, sidecars+n)
		}
	}
	return max(most, sidecars+regular)
}

// free returns the CPUs that no container has for itself and that are not reserved.
func (m *Manager) free() cpuset.CPUSet { return m.draft.shared.Difference(m.reserved) }

// Hints returns the sets of NUMA nodes on which a container could have its CPUs.
func (m *Manager) Hints(pod *corev1.Pod, c *corev1.Container) hints.ByResource {
	n := Requested(pod, c)
	if !m.config.Static || n == 0 {
		return nil
	}
	if given, ok := m.draft.given[string(pod.UID)][c.Name]; ok {
		if given.Size() != n {
			return hints.ByResource{string(corev1.ResourceCPU): {}}
		}
		return m.hints(given, cpuset.New(), n)
	}
	return m.hints(m.free(), m.reusable, n)
}

// PodHints returns the sets of NUMA nodes on which all containers of a Pod could have their CPUs.
func (m *Manager) PodHints(pod *corev1.Pod) hints.ByResource {
	n := podRequested(pod)
	if !m.config.Static || n == 0 {
		return nil
	}
	assigned := cpuset.New()
	for c := range podutil.Containers(&pod.Spec) {
		if given, ok := m.draft.given[string(pod.UID)][c.Name]; ok {
			if given.Size() != Requested(pod, c) {
				return hints.ByResource{string(corev1.ResourceCPU): {}}
			}
			assigned = assigned.Union(given)
		}
	}
	if assigned.Size() == n {
		return m.hints(assigned, cpuset.New(), n)
	}
	return m.hints(m.free(), m.reusable.Union(assigned), n)
}

// hints returns the sets of NUMA nodes that contain all reusable CPUs and have n CPUs that are free or reusable.
func (m *Manager) hints(free, reusable cpuset.CPUSet, n int) hints.ByResource {
	nodes := m.topology.CPUNodes().List()
	found, least := []hints.Hint{}, len(nodes)
	hints.Combinations(nodes, func(mask hints.Mask) {
		if m.topology.InNodes(mask.Nodes()...).Size() >= n {
			least = min(least, mask.Count())
		}
		inside := m.inNodes(reusable, mask)
		if inside.Size() == reusable.Size() && inside.Size()+m.inNodes(free, mask).Size() >= n {
			found = append(found, hints.Hint{Nodes: mask})
		}
	})
	for i := range found {
		found[i].Preferred = found[i].Nodes.Count() == least
	}
	return hints.ByResource{string(corev1.ResourceCPU): found}
}

// Allocate gives a container its CPUs, those of the hint's NUMA nodes first. A container that has some already keeps them. The error
// is a *rejection.Error, or names the CPUs that are free.
func (m *Manager) Allocate(pod *corev1.Pod, c *corev1.Container, hint hints.Hint) error {
	n := Requested(pod, c)
	if !m.config.Static || n == 0 {
		return nil
	}
	m.metrics.CPURequests.Inc()
	err := m.allocate(pod, c, n, hint.Nodes)
	aligned := m.metrics.Aligned
	if err != nil {
		m.metrics.CPUErrors.Inc()
		m.metrics.CountError(metrics.ResourceCPU)
		aligned = m.metrics.AlignFailures
	}
	if m.config.Options.FullCores {
		aligned.WithLabelValues(metrics.ScopeContainer, metrics.BoundaryCore).Inc()
	}
	return err
}

func (m *Manager) allocate(pod *corev1.Pod, c *corev1.Container, n int, nodes hints.Mask) error {
	if err := m.checkCores(n); err != nil {
		return err
	}
	if given, ok := m.draft.given[string(pod.UID)][c.Name]; ok {
		m.reuse(pod, c, given)
		return nil
	}
	free := m.free().Union(m.reusable)
	if n > free.Size() {
		return fmt.Errorf("[cpumanager] not enough CPUs are free: %d requested, free are %s", n, m.describe(free))
	}
	taken := cpuset.New()
	if nodes != 0 {
		aligned := m.inNodes(free, nodes)
		var err error
		if taken, err = take(m.topology, m.config.Options, aligned, min(n, aligned.Size())); err != nil {
			return err
		}
	}
	rest, err := take(m.topology, m.config.Options, free.Difference(taken), n-taken.Size())
	if err != nil {
		return err
	}
	taken = taken.Union(rest)
	m.draft.shared = m.draft.shared.Difference(taken)
	m.draft.set(string(pod.UID), c.Name, taken)
	m.metrics.CountAllocation(metrics.ResourceCPU, 1)
	if m.inOneCache(taken) {
		m.metrics.Aligned.WithLabelValues(metrics.ScopeContainer, metrics.BoundaryCache).Inc()
	}
	m.reuse(pod, c, taken)
	return nil
}

// Free describes which CPUs a container could have for itself.
func (m *Manager) Free(string) string { return m.describe(m.free().Union(m.reusable)) }

// describe returns how many CPUs there are, by their NUMA nodes.
func (m *Manager) describe(cpus cpuset.CPUSet) string {
	if cpus.IsEmpty() {
		return "0"
	}
	parts := []string{}
	for _, node := range m.topology.CPUNodes().List() {
		parts = append(parts, fmt.Sprintf("%s on NUMA node %d", cmp.Or(cpus.Intersection(m.topology.InNodes(node)).String(), "none"), node))
	}
	return fmt.Sprintf("%d (%s)", cpus.Size(), strings.Join(parts, ", "))
}

// checkCores rejects a number of CPUs that does not fill cores, if only whole ones are given.
func (m *Manager) checkCores(n int) error {
	if !m.config.Options.FullCores {
		return nil
	}
	threads := max(m.topology.ThreadsPerCore(), 1)
	if n%threads != 0 {
		return rejection.New(rejection.SMTAlignment, "SMT Alignment Error: requested %d cpus not multiple cpus per core = %d", n, threads)
	}
	if free := m.draft.shared.Difference(m.reservedCores); n > free.Size() {
		return rejection.New(rejection.SMTAlignment, "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = %d, "+
			"requested CPUs = %d, CPUs per core = %d", free.Size(), n, threads)
	}
	return nil
}

// reuse lets later containers of the Pod have the CPUs of an init container that has ended before they start.
func (m *Manager) reuse(pod *corev1.Pod, c *corev1.Container, cpus cpuset.CPUSet) {
	if _, kind := podutil.FindContainer(&pod.Spec, c.Name); kind == podutil.Init && !podutil.IsSidecar(c, kind) {
		m.reusable = m.reusable.Union(cpus)
		return
	}
	m.reusable = m.reusable.Difference(cpus)
}

func (m *Manager) inOneCache(cpus cpuset.CPUSet) bool {
	caches := map[int]bool{}
	for _, id := range cpus.UnsortedList() {
		caches[m.topology.CPUs[id].Cache] = true
	}
	return len(caches) <= 1
}
