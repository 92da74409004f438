package devices

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/internal/resourcename"
	"github.com/berth-dev/berth/kubelet/resources/hints"
)

// Begin starts an admission.
func (m *Manager) Begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.added, m.reusable = nil, map[string][]string{}
}

// Rollback returns what was reserved since Begin.
func (m *Manager) Rollback() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.added {
		m.given.remove(r.uid, r.container, r.resource)
	}
	m.added = nil
}

// requests returns how many devices of each plugin's resource a container requests. A resource for which the scheduler has
// allocated a claim is not a plugin's. The caller holds mu.
func (m *Manager) requests(pod *corev1.Pod, c *corev1.Container) map[string]int {
	var out map[string]int
	for name, quantity := range c.Resources.Limits {
		if !resourcename.IsExtended(name) || quantity.IsZero() || isClaimed(pod, c.Name, name) || !m.isDevice(string(name)) {
			continue
		}
		if out == nil {
			out = map[string]int{}
		}
		out[string(name)] = int(quantity.Value())
	}
	return out
}

// isClaimed reports whether the container's extended resource comes from a ResourceClaim.
func isClaimed(pod *corev1.Pod, container string, name corev1.ResourceName) bool {
	claimed := pod.Status.ExtendedResourceClaimStatus
	return claimed != nil && slices.ContainsFunc(claimed.RequestMappings, func(r corev1.ContainerExtendedResourceRequest) bool {
		return r.ContainerName == container && r.ResourceName == string(name)
	})
}

// used returns the devices of a resource that containers have. The caller holds mu.
func (m *Manager) used(name string) map[string]bool {
	used := map[string]bool{}
	for _, containers := range m.given {
		for _, resources := range containers {
			if g := resources[name]; g != nil {
				for _, id := range g.devices.ids() {
					used[id] = true
				}
			}
		}
	}
	return used
}

// free returns the healthy devices of a resource that no container has, sorted. The caller holds mu.
func (m *Manager) free(name string) []string {
	p := m.pools[name]
	if p == nil {
		return nil
	}
	used := m.used(name)
	return slices.DeleteFunc(p.healthyIDs(), func(id string) bool { return used[id] })
}

// maxDescribed is how many devices a message names.
const maxDescribed = 16

// Free describes which devices of a resource are free.
func (m *Manager) Free(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.describeFree(name)
}

// describeFree is Free. The caller holds mu.
func (m *Manager) describeFree(name string) string {
	var parts []string
	free := m.free(name)
	for i, id := range free {
		if i == maxDescribed {
			parts = append(parts, fmt.Sprintf("and %d more", len(free)-i))
			break
		}
		text := id
		for i, node := range m.pools[name].devices[id].nodes {
			if i == 0 {
				text += " on NUMA node "
			} else {
				text += " and "
			}
			text += strconv.Itoa(node)
		}
		parts = append(parts, text)
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// Hints returns the sets of NUMA nodes on which a container could have its devices.
func (m *Manager) Hints(pod *corev1.Pod, c *corev1.Container) hints.ByResource {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := hints.ByResource{}
	for name, n := range m.requests(pod, c) {
		var own []string
		if g := m.given.get(string(pod.UID), c.Name, name); g != nil {
			own = g.devices.ids()
		}
		out[name] = m.hints(name, n, own, m.reusable[name])
	}
	return out
}

// PodHints returns the sets of NUMA nodes on which all containers of a Pod could have their devices.
func (m *Manager) PodHints(pod *corev1.Pod) hints.ByResource {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := hints.ByResource{}
	for name, quantity := range resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{ExcludeOverhead: true}) {
		if !resourcename.IsExtended(name) || quantity.IsZero() || !m.isDevice(string(name)) {
			continue
		}
		all := byNode{}
		for c := range podutil.Containers(&pod.Spec) {
			if g := m.given.get(string(pod.UID), c.Name, string(name)); g != nil {
				all[noNode] = append(all[noNode], g.devices.ids()...)
			}
		}
		out[string(name)] = m.hints(string(name), int(quantity.Value()), all.ids(), nil)
	}
	return out
}

// hints returns the hints for n devices: those that a container has already, or free and reusable ones. It is nil if the devices are
// on no NUMA nodes. The caller holds mu.
func (m *Manager) hints(name string, n int, own, reusable []string) []hints.Hint {
	p := m.pools[name]
	if p == nil || !p.hasNodes() {
		return nil
	}
	candidates := own
	switch {
	case len(own) == 0:
		candidates = m.free(name)
	case len(own) != n:
		return []hints.Hint{}
	default:
		reusable = nil
	}
	if len(candidates)+len(reusable) < n {
		return []hints.Hint{}
	}
	nodes := p.nodes(m.deps.NUMANodes)
	found, least := []hints.Hint{}, len(nodes)
	hints.Combinations(nodes, func(mask hints.Mask) {
		all := 0
		for _, d := range p.devices {
			if d.on(mask) {
				all++
			}
		}
		if all >= n {
			least = min(least, mask.Count())
		}
		count := 0
		for _, id := range reusable {
			if len(p.devices[id].nodes) == 0 {
				continue
			}
			if !p.devices[id].on(mask) {
				return
			}
			count++
		}
		for _, id := range candidates {
			if p.devices[id].on(mask) {
				count++
			}
		}
		if count >= n {
			found = append(found, hints.Hint{Nodes: mask})
		}
	})
	for i := range found {
		found[i].Preferred = found[i].Nodes.Count() == least
	}
	return found
}

func (p *pool) hasNodes() bool {
	for _, d := range p.devices {
		if len(d.nodes) > 0 {
			return true
		}
	}
	return false
}

// nodes returns the nodes of the machine that devices are on; all if there are none.
func (p *pool) nodes(known []int) []int {
	on := slices.DeleteFunc(slices.Clone(known), func(node int) bool {
		for _, d := range p.devices {
			if slices.Contains(d.nodes, node) {
				return false
			}
		}
		return true
	})
	if len(on) == 0 {
		return known
	}
	return on
}

func (d device) on(mask hints.Mask) bool {
	return slices.ContainsFunc(d.nodes, func(node int) bool { return node >= 0 && node < hints.MaxNodes && mask.Has(node) })
}

// Allocate reserves the devices that a container requests: those of its Pod's init containers first, then those on the hint's NUMA
// nodes. A container that has some already keeps them.
func (m *Manager) Allocate(pod *corev1.Pod, c *corev1.Container, hint hints.Hint) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	requests := m.requests(pod, c)
	for _, name := range sortedKeys(requests) {
		if err := m.reserve(pod, c, name, requests[name], hint.Nodes); err != nil {
			return err
		}
	}
	return nil
}

// reserve reserves the devices of one resource. The caller holds mu.
func (m *Manager) reserve(pod *corev1.Pod, c *corev1.Container, name string, n int, mask hints.Mask) error {
	uid := string(pod.UID)
	g := m.given.get(uid, c.Name, name)
	p := m.pools[name]
	if p == nil {
		return fmt.Errorf("cannot allocate unregistered device %s", name)
	}
	if g == nil {
		var err error
		if g, err = m.choose(p, name, n, mask); err != nil {
			return err
		}
		m.given.set(uid, c.Name, name, g)
		m.added = append(m.added, reservation{uid, c.Name, name})
	} else if have := g.devices.ids(); len(have) != n {
		return fmt.Errorf("pod %q container %q changed request for resource %q from %d to %d", uid, c.Name, name, len(have), n)
	} else if err := p.check(name, have); err != nil {
		return err
	}
	_, kind := podutil.FindContainer(&pod.Spec, c.Name)
	ids := g.devices.ids()
	if kind == podutil.Init && !podutil.IsSidecar(c, kind) {
		m.reusable[name] = append(m.reusable[name], slices.DeleteFunc(ids, func(id string) bool { return slices.Contains(m.reusable[name], id) })...)
	} else {
		m.reusable[name] = slices.DeleteFunc(m.reusable[name], func(id string) bool { return slices.Contains(ids, id) })
	}
	return nil
}

// choose chooses n devices of a pool, which is nil if no plugin has the resource. The caller holds mu.
func (m *Manager) choose(p *pool, name string, n int, mask hints.Mask) (*grant, error) {
	if err := p.check(name, nil); err != nil {
		return nil, err
	}
	if err := m.unknown.check(name); err != nil {
		return nil, err
	}
	reused := slices.Clone(m.reusable[name])
	slices.Sort(reused)
	reused = reused[:min(len(reused), n)]
	free := m.free(name)
	if needed := n - len(reused); len(free) < needed {
		which := ""
		if len(free) > 0 {
			which = " (" + m.describeFree(name) + ")"
		}
		return nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d%s", name, needed, len(free), which)
	}
	var nodes []int
	if mask != 0 && p.hasNodes() {
		nodes = mask.Nodes()
		slices.SortStableFunc(free, func(a, b string) int { return p.devices[a].rank(mask) - p.devices[b].rank(mask) })
	}
	chosen := slices.Concat(reused, free[:n-len(reused)])
	return &grant{devices: p.placed(chosen), nodes: nodes, reused: reused}, nil
}

// rank orders devices: those on the nodes first, those on no node last.
func (d device) rank(mask hints.Mask) int {
	switch {
	case d.on(mask):
		return 0
	case len(d.nodes) > 0:
		return 1
	}
	return 2
}

// placed returns the devices by their NUMA nodes.
func (p *pool) placed(ids []string) byNode {
	out := byNode{}
	for _, id := range ids {
		nodes := p.devices[id].nodes
		if len(nodes) == 0 {
			out[noNode] = append(out[noNode], id)
		}
		for _, node := range nodes {
			out[int64(node)] = append(out[int64(node)], id)
		}
	}
	for _, list := range out {
		slices.Sort(list)
	}
	return out
}
