package memory

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/internal/resourcename"
	"github.com/berth-dev/berth/kubelet/qos"
	"github.com/berth-dev/berth/kubelet/resources/hints"
	"github.com/berth-dev/berth/kubelet/resources/metrics"
)

// managed reports whether the Pod's containers get memory of chosen nodes.
func managed(pod *corev1.Pod) bool {
	return qos.Class(pod) == corev1.PodQOSGuaranteed && !resourcehelper.IsPodLevelResourcesSet(pod)
}

// requested returns the memory and huge pages that a container requests.
func requested(c *corev1.Container) Amounts {
	want := Amounts{}
	for name, quantity := range c.Resources.Requests {
		if name == corev1.ResourceMemory || resourcename.IsHugePages(name) {
			want[name] = uint64(max(quantity.Value(), 0))
		}
	}
	return want
}

// podRequested returns the memory that the containers of a Pod have at most at the same time, of the kinds that a regular container
// requests: as in upstream's, huge pages of init containers alone are not aligned with the rest of the Pod.
func podRequested(pod *corev1.Pod) Amounts {
	sidecars, most, sum := Amounts{}, Amounts{}, Amounts{}
	for c, kind := range podutil.Containers(&pod.Spec) {
		for name, size := range requested(c) {
			switch {
			case kind == podutil.Ephemeral:
			case podutil.IsSidecar(c, kind):
				sidecars[name] += size
				sum[name] += size
			case kind == podutil.Regular:
				sum[name] += size
			default:
				most[name] = max(most[name], sidecars[name]+size)
			}
		}
	}
	kinds := Amounts{}
	for i := range pod.Spec.Containers {
		for name := range requested(&pod.Spec.Containers[i]) {
			kinds[name] = max(sum[name], most[name])
		}
	}
	return kinds
}

// Hints returns the sets of NUMA nodes of which a container could have its memory.
func (m *Manager) Hints(pod *corev1.Pod, c *corev1.Container) hints.ByResource {
	if !m.config.Static || !managed(pod) {
		return nil
	}
	want := requested(c)
	if blocks, ok := m.draft.given[string(pod.UID)][c.Name]; ok {
		return hintsOf(blocks, want)
	}
	return byResource(m.draft.nodes.hints(want, m.reusableOf), want)
}

// PodHints returns the sets of NUMA nodes of which all containers of a Pod could have their memory.
func (m *Manager) PodHints(pod *corev1.Pod) hints.ByResource {
	if !m.config.Static || !managed(pod) {
		return nil
	}
	want := podRequested(pod)
	if len(want) == 0 {
		return nil
	}
	for c := range podutil.Containers(&pod.Spec) {
		if blocks, ok := m.draft.given[string(pod.UID)][c.Name]; ok {
			return hintsOf(blocks, want)
		}
	}
	return byResource(m.draft.nodes.hints(want, m.reusableOf), want)
}

// byResource returns the hints of all kinds of memory. If no nodes have enough there are none, as if any nodes would do: Allocate
// rejects the Pod then, and says what is free.
func byResource(found []hints.Hint, want Amounts) hints.ByResource {
	if len(found) == 0 {
		return nil
	}
	out := hints.ByResource{}
	for name := range want {
		out[string(name)] = found
	}
	return out
}

// hintsOf returns the hints of memory that a container has already; nil if it requests other Amounts now.
func hintsOf(blocks []Block, want Amounts) hints.ByResource {
	if len(blocks) != len(want) {
		return nil
	}
	out := hints.ByResource{}
	for _, b := range blocks {
		if size, ok := want[b.Type]; !ok || size != b.Size {
			return nil
		}
		out[string(b.Type)] = []hints.Hint{{Nodes: hints.MaskOf(b.NUMAAffinity...), Preferred: true}}
	}
	return out
}

func (m *Manager) reusableOf(mask hints.Mask, kind corev1.ResourceName) uint64 {
	return m.reusable[mask][kind]
}

// Allocate gives a container its memory, that of the NUMA nodes of the hint if it has any. A container that has some already
// keeps it.
func (m *Manager) Allocate(pod *corev1.Pod, c *corev1.Container, hint hints.Hint) error {
	if !m.config.Static || !managed(pod) {
		return nil
	}
	m.metrics.MemoryRequests.Inc()
	if err := m.allocate(pod, c, hint); err != nil {
		m.metrics.MemoryErrors.Inc()
		m.metrics.CountError(metrics.ResourceMemory)
		return err
	}
	return nil
}

func (m *Manager) allocate(pod *corev1.Pod, c *corev1.Container, hint hints.Hint) error {
	uid := string(pod.UID)
	if blocks, ok := m.draft.given[uid][c.Name]; ok {
		m.reuse(pod, c, blocks)
		return nil
	}
	want := requested(c)
	mask, err := m.choose(want, hint)
	if err != nil {
		return err
	}
	var blocks []Block
	for _, kind := range slices.Sorted(maps.Keys(want)) {
		b := Block{NUMAAffinity: mask.Nodes(), Type: kind, Size: want[kind]}
		m.draft.nodes.take(b, m.reusableOf(mask, kind))
		blocks = append(blocks, b)
	}
	m.reuse(pod, c, blocks)
	if m.draft.given[uid] == nil {
		m.draft.given[uid] = map[string][]Block{}
	}
	m.draft.given[uid][c.Name] = blocks
	m.metrics.CountAllocation(metrics.ResourceMemory, len(blocks))
	m.shrinkInits(pod, c, blocks)
	return nil
}

// choose returns the NUMA nodes for the memory: those of the hint, or the best that contain them and have enough.
func (m *Manager) choose(want Amounts, hint hints.Hint) (hints.Mask, error) {
	nodes := m.draft.nodes
	mask := hint.Nodes
	if mask == 0 || !m.enough(mask, want) {
		best, ok := bestOf(nodes.hints(want, m.reusableOf), mask)
		if !ok {
			return 0, fmt.Errorf("[memorymanager] no NUMA nodes have enough memory that is free: %s", nodes.describe(want))
		}
		if hint.Preferred && !best.Preferred {
			return 0, fmt.Errorf("[memorymanager] failed to find the preferred NUMA nodes: %s", nodes.describe(want))
		}
		mask = best.Nodes
	}
	if mask.Count() > 1 && !nodes.groupable(mask) {
		return 0, errors.New("[memorymanager] preferred hint violates NUMA node allocation: a node that gives memory alone cannot " +
			"give it together with others")
	}
	return mask, nil
}

// Free describes how much of a kind of memory is free.
func (m *Manager) Free(kind string) string {
	return m.draft.nodes.freeByNode(corev1.ResourceName(kind))
}

// enough reports whether the nodes have enough that is free.
func (m *Manager) enough(mask hints.Mask, want Amounts) bool {
	for kind, size := range want {
		if m.draft.nodes.freeOf(mask.Nodes(), kind) < size {
			return false
		}
	}
	return true
}

// bestOf returns the best hint that contains the nodes: a preferred one, then the narrowest.
func bestOf(found []hints.Hint, contains hints.Mask) (best hints.Hint, ok bool) {
	for _, h := range found {
		if h.Nodes&contains != contains {
			continue
		}
		if !ok || h.Preferred && !best.Preferred || h.Preferred == best.Preferred && h.Nodes.NarrowerThan(best.Nodes) {
			best, ok = h, true
		}
	}
	return best, ok
}

// reuse lets later containers of the Pod have the memory of an init container that has ended before they start.
func (m *Manager) reuse(pod *corev1.Pod, c *corev1.Container, blocks []Block) {
	_, kind := podutil.FindContainer(&pod.Spec, c.Name)
	init := kind == podutil.Init && !podutil.IsSidecar(c, kind)
	for _, b := range blocks {
		mask := hints.MaskOf(b.NUMAAffinity...)
		if m.reusable[mask] == nil {
			m.reusable[mask] = Amounts{}
		}
		left := m.reusable[mask][b.Type]
		if init {
			m.reusable[mask][b.Type] = max(left, b.Size)
		} else {
			m.reusable[mask][b.Type] = left - min(left, b.Size)
		}
	}
}

// shrinkInits takes what the container reuses out of the blocks of init containers, so that the sum of all blocks is what the
// Pod has.
func (m *Manager) shrinkInits(pod *corev1.Pod, c *corev1.Container, blocks []Block) {
	for _, b := range blocks {
		rest := b.Size
		for i := range pod.Spec.InitContainers {
			other := &pod.Spec.InitContainers[i]
			if other.Name == c.Name {
				break
			}
			if podutil.IsSidecar(other, podutil.Init) {
				continue
			}
			for j := range m.draft.given[string(pod.UID)][other.Name] {
				held := &m.draft.given[string(pod.UID)][other.Name][j]
				if held.Type == b.Type && slices.Equal(held.NUMAAffinity, b.NUMAAffinity) {
					part := min(held.Size, rest)
					held.Size -= part
					rest -= part
				}
			}
		}
	}
}

func sortBlocks(blocks []Block) {
	slices.SortFunc(blocks, func(a, b Block) int {
		return cmp.Or(slices.Compare(a.NUMAAffinity, b.NUMAAffinity), cmp.Compare(a.Type, b.Type))
	})
}
