package devices

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/resources/rejection"
)

// Options are what a container gets with its devices.
type Options struct {
	Envs        map[string]string
	Mounts      []*runtimeapi.Mount
	Devices     []*runtimeapi.Device
	CDIDevices  []*runtimeapi.CDIDevice
	Annotations map[string]string
}

// PreparePod checks, before a Pod's sandbox is created, the devices that an earlier process has given to its containers: the machine may have
// booted since, with other devices. A *rejection.Error says that the plugin does not report them as healthy, or has not registered
// yet; upstream's kubelet rejects such a Pod, too, when it starts.
func (m *Manager) PreparePod(uid string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.earlier[uid] {
		return nil
	}
	for _, resources := range m.given[uid] {
		for _, name := range sortedKeys(resources) {
			if err := m.pools[name].check(name, resources[name].devices.ids()); err != nil {
				return rejection.From(err)
			}
		}
	}
	delete(m.earlier, uid)
	return nil
}

// check returns why a container cannot have devices of the pool, or not those that it has already; nil if it can. A nil pool is a resource that
// no plugin has.
func (p *pool) check(name string, ids []string) error {
	switch {
	case p == nil:
		return fmt.Errorf("cannot allocate unregistered device %s", name)
	case len(p.healthyIDs()) == 0:
		return fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", name)
	case slices.ContainsFunc(ids, func(id string) bool { return !p.devices[id].healthy }):
		return fmt.Errorf("previously allocated devices are no longer healthy; cannot allocate unhealthy devices %s", name)
	}
	return nil
}

// Prepare has the plugins allocate the container's devices, once, and prepare them for each start of it. A *rejection.Error says
// that the container cannot have them; after another error Prepare is to be called again.
func (m *Manager) Prepare(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (*Options, error) {
	requests := m.requestsOf(pod, c)
	if len(requests) == 0 {
		return nil, nil
	}
	uid := string(pod.UID)
	if err := m.awaitAhead(ctx, uid, c.Name); err != nil {
		return nil, err
	}
	for _, name := range sortedKeys(requests) {
		g, err := m.grantOf(pod, c, name, requests[name])
		if err == nil {
			err = m.allocate(ctx, name, g, requests[name])
		}
		if err != nil {
			return nil, err
		}
	}
	if err := m.store(uid, c.Name); err != nil {
		return nil, err
	}
	for _, name := range sortedKeys(requests) {
		if err := m.preStart(ctx, uid, c.Name, name); err != nil {
			return nil, err
		}
	}
	return m.options(uid, c.Name), nil
}

func (m *Manager) requestsOf(pod *corev1.Pod, c *corev1.Container) map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.requests(pod, c)
}

// grantOf returns what the container was given of a resource when its Pod was admitted.
func (m *Manager) grantOf(pod *corev1.Pod, c *corev1.Container, name string, n int) (*grant, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g := m.given.get(string(pod.UID), c.Name, name); g != nil {
		return g, nil
	}
	// The process that admitted the Pod ended before the plugin allocated anything.
	reusable := m.reusable // of the admission under way
	m.reusable = map[string][]string{name: m.leftByInits(pod, c, name)}
	g, err := m.choose(m.pools[name], name, n, 0)
	m.reusable = reusable
	if err != nil {
		return nil, rejection.From(err)
	}
	m.given.set(string(pod.UID), c.Name, name, g)
	return g, nil
}

// leftByInits returns the devices of a resource that init containers of the Pod have, and none that runs beside or after them. The container is
// about to start, so that the init containers before it have ended. The caller holds mu.
func (m *Manager) leftByInits(pod *corev1.Pod, c *corev1.Container, name string) []string {
	var left, taken []string
	for other, kind := range podutil.Containers(&pod.Spec) {
		g := m.given.get(string(pod.UID), other.Name, name)
		switch {
		case g == nil || other.Name == c.Name:
		case kind == podutil.Init && !podutil.IsSidecar(other, kind):
			left = append(left, g.devices.ids()...)
		default:
			taken = append(taken, g.devices.ids()...)
		}
	}
	slices.Sort(left)
	return slices.DeleteFunc(slices.Compact(left), func(id string) bool { return slices.Contains(taken, id) })
}

// allocate has the plugin allocate the devices of a grant, unless it has.
func (m *Manager) allocate(ctx context.Context, name string, g *grant, n int) error {
	m.mu.Lock()
	done := g.response != nil
	m.mu.Unlock()
	if done {
		return nil
	}
	p := m.connection(name)
	if p == nil {
		return fmt.Errorf("allocate devices %s: the device plugin is not connected", name)
	}
	if err := m.prefer(ctx, p, g, n); err != nil {
		return err
	}
	ids := m.idsOf(g)
	start := time.Now()
	resp, err := p.client.Allocate(ctx, &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}},
	})
	m.deps.Metrics.DeviceAllocation.WithLabelValues(name).Observe(time.Since(start).Seconds())
	if err != nil {
		return refused(ctx, fmt.Errorf("device plugin %s does not allocate devices %v: %w", name, ids, err))
	}
	if len(resp.ContainerResponses) == 0 {
		return rejection.From(fmt.Errorf("no containers return in allocation response of device plugin %s", name))
	}
	m.mu.Lock()
	g.response = resp.ContainerResponses[0]
	m.mu.Unlock()
	return nil
}

func (m *Manager) idsOf(g *grant) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return g.devices.ids()
}

// store writes the state file, unless it has all that the plugins have allocated for the container.
func (m *Manager) store(uid, container string) error {
	m.mu.Lock()
	stored := true
	for _, g := range m.given[uid][container] {
		stored = stored && g.stored
	}
	m.mu.Unlock()
	if stored {
		return nil
	}
	return m.save()
}

// refused makes the error of a plugin one that the Pod fails with, unless the plugin was not reached.
func refused(ctx context.Context, err error) error {
	var known interface{ GRPCStatus() *status.Status }
	if ctx.Err() != nil || errors.As(err, &known) && known.GRPCStatus().Code() == codes.Unavailable {
		return err
	}
	return rejection.From(err)
}

// prefer exchanges the reserved devices for those that the plugin prefers, as far as these are free.
func (m *Manager) prefer(ctx context.Context, p *plugin, g *grant, n int) error {
	if !p.options.GetGetPreferredAllocationAvailable() {
		return nil
	}
	available, must := m.choices(p.resource, g, n)
	if len(available) <= n {
		return nil
	}
	resp, err := p.client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: available, MustIncludeDeviceIDs: must, AllocationSize: int32(n),
		}},
	})
	if err != nil {
		return refused(ctx, fmt.Errorf("device plugin %s: GetPreferredAllocation: %w", p.resource, err))
	}
	if len(resp.ContainerResponses) == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.pools[p.resource]
	if of == nil {
		return nil
	}
	offered, _ := m.offer(p.resource, g, n)
	left := sets.New(offered...).Delete(must...)
	chosen := must
	for _, id := range slices.Concat(resp.ContainerResponses[0].DeviceIDs, g.devices.ids()) {
		if len(chosen) < n && left.Has(id) {
			chosen = append(chosen, id)
			left.Delete(id)
		}
	}
	if len(chosen) == n {
		g.devices = of.placed(chosen)
	}
	return nil
}

// choices returns the devices that a plugin may prefer for a grant, and those of them that the grant keeps in any case: those of an init
// container, and all that it has of its NUMA nodes if it needs others, too.
func (m *Manager) choices(name string, g *grant, n int) (available, must []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	available, enough := m.offer(name, g, n)
	must = slices.Clone(g.reused)
	if of := m.pools[name]; of != nil && !enough {
		for _, id := range g.devices.ids() {
			if of.devices[id].onAny(g.nodes) && !slices.Contains(must, id) {
				must = append(must, id)
			}
		}
	}
	return available, must
}

// offer returns the devices from which n may be chosen for a grant: its own, and free ones, those on its NUMA nodes only if they
// suffice, which enough says; it is true where nodes do not matter. The caller holds mu.
func (m *Manager) offer(name string, g *grant, n int) (all []string, enough bool) {
	of := m.pools[name]
	own := g.devices.ids()
	if of == nil {
		return own, true
	}
	all, enough = slices.Concat(own, m.free(name)), len(g.nodes) == 0
	if !enough {
		aligned := slices.DeleteFunc(slices.Clone(all), func(id string) bool {
			return !slices.Contains(g.reused, id) && !of.devices[id].onAny(g.nodes)
		})
		if enough = len(aligned) >= n; enough {
			all = aligned
		}
	}
	slices.Sort(all)
	return slices.Compact(all), enough
}

// onAny reports whether the device is on one of the NUMA nodes.
func (d device) onAny(nodes []int) bool {
	return slices.ContainsFunc(d.nodes, func(node int) bool { return slices.Contains(nodes, node) })
}

// preStart has the plugin prepare the devices for a start of the container, if it wants to. Where it does not, what it has allocated is
// known, and it need not be connected. A plugin that does not respond in time fails this start: the next one asks it again.
func (m *Manager) preStart(ctx context.Context, uid, container, name string) error {
	m.mu.Lock()
	wanted, g := m.preparing[name], m.given[uid][container][name]
	m.mu.Unlock()
	if !wanted {
		return nil
	}
	p := m.connection(name)
	if p == nil {
		return fmt.Errorf("device plugin %s: PreStartContainer: the device plugin is not connected", name)
	}
	if g == nil {
		return fmt.Errorf("device plugin %s: the container's devices were taken back while it was being started", name)
	}
	ctx, cancel := context.WithTimeout(ctx, pluginapi.KubeletPreStartContainerRPCTimeoutInSecs*time.Second)
	defer cancel()
	if _, err := p.client.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: m.idsOf(g)}); err != nil {
		return fmt.Errorf("device plugin %s: PreStartContainer: %w", name, err)
	}
	return nil
}

// options merges what the plugins have responded for a container. Of two values for the same thing the first one holds, by the names
// of the resources.
func (m *Manager) options(uid, container string) *Options {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := &Options{Envs: map[string]string{}, Annotations: map[string]string{}}
	devices, mounts, cdi := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, name := range sortedKeys(m.given[uid][container]) {
		resp := m.given[uid][container][name].response
		addMissing(out.Envs, resp.GetEnvs())
		addMissing(out.Annotations, resp.GetAnnotations())
		for _, d := range resp.GetDevices() {
			if !devices[d.ContainerPath] {
				devices[d.ContainerPath] = true
				out.Devices = append(out.Devices, &runtimeapi.Device{ContainerPath: d.ContainerPath, HostPath: d.HostPath, Permissions: d.Permissions})
			}
		}
		for _, mount := range resp.GetMounts() {
			if !mounts[mount.ContainerPath] {
				mounts[mount.ContainerPath] = true
				out.Mounts = append(out.Mounts, &runtimeapi.Mount{ContainerPath: mount.ContainerPath, HostPath: mount.HostPath, Readonly: mount.ReadOnly})
			}
		}
		for _, d := range resp.GetCdiDevices() {
			if !cdi[d.Name] {
				cdi[d.Name] = true
				out.CDIDevices = append(out.CDIDevices, &runtimeapi.CDIDevice{Name: d.Name})
			}
		}
	}
	return out
}

func addMissing(to, from map[string]string) {
	for key, value := range from {
		if _, has := to[key]; !has {
			to[key] = value
		}
	}
}

func sortedKeys[V any](of map[string]V) []string { return slices.Sorted(maps.Keys(of)) }
