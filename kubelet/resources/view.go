package resources

import (
	corev1 "k8s.io/api/core/v1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/cpuset"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/resources/claims"
	"github.com/berth-dev/berth/kubelet/resources/devices"
	"github.com/berth-dev/berth/kubelet/resources/memory"
	"github.com/berth-dev/berth/kubelet/resources/metrics"
	"github.com/berth-dev/berth/kubelet/resources/podresources"
)

var _ podresources.Source = (*Manager)(nil)

// Metrics returns the metrics of all managers.
func (m *Manager) Metrics() *metrics.Metrics { return m.metrics }

// ContainerResources implements podresources.Source.
func (m *Manager) ContainerResources(pod *corev1.Pod, c *corev1.Container) *podresourcesapi.ContainerResources {
	uid := string(pod.UID)
	out := &podresourcesapi.ContainerResources{
		Name: c.Name, Devices: containerDevices(m.devices.Of(uid, c.Name)), Memory: containerMemory(m.memory.Of(uid, c.Name)),
	}
	if cpus, exclusive := m.cpus.Of(uid, c.Name); exclusive {
		out.CpuIds = cpuIDs(cpus)
	}
	if podutil.HasClaims(pod) {
		out.DynamicResources = dynamicResources(m.claims.Of(pod, c))
	}
	return out
}

// AllocatableResources implements podresources.Source.
func (m *Manager) AllocatableResources() *podresourcesapi.AllocatableResourcesResponse {
	return &podresourcesapi.AllocatableResourcesResponse{
		Devices: containerDevices(m.devices.Healthy()), CpuIds: cpuIDs(m.cpus.Allocatable()), Memory: containerMemory(m.memory.Allocatable()),
	}
}

func cpuIDs(set cpuset.CPUSet) []int64 {
	var ids []int64
	for _, id := range set.List() {
		ids = append(ids, int64(id))
	}
	return ids
}

// containerDevices returns one entry for each device and NUMA node that it is on.
func containerDevices(list []devices.Device) []*podresourcesapi.ContainerDevices {
	var out []*podresourcesapi.ContainerDevices
	for _, d := range list {
		if len(d.Nodes) == 0 {
			out = append(out, &podresourcesapi.ContainerDevices{ResourceName: d.Resource, DeviceIds: []string{d.ID}})
		}
		for _, node := range d.Nodes {
			out = append(out, &podresourcesapi.ContainerDevices{ResourceName: d.Resource, DeviceIds: []string{d.ID}, Topology: topology(node)})
		}
	}
	return out
}

func containerMemory(blocks []memory.Block) []*podresourcesapi.ContainerMemory {
	var out []*podresourcesapi.ContainerMemory
	for _, b := range blocks {
		out = append(out, &podresourcesapi.ContainerMemory{MemoryType: string(b.Type), Size: b.Size, Topology: topology(b.NUMAAffinity...)})
	}
	return out
}

// dynamicResources returns one entry for each claim, with its devices.
func dynamicResources(list []claims.Device) []*podresourcesapi.DynamicResource {
	var out []*podresourcesapi.DynamicResource
	for _, d := range list {
		if n := len(out); n == 0 || out[n-1].ClaimName != d.Claim {
			out = append(out, &podresourcesapi.DynamicResource{ClaimName: d.Claim, ClaimNamespace: d.Namespace})
		}
		last := out[len(out)-1]
		of := &podresourcesapi.ClaimResource{DriverName: d.Driver, PoolName: d.Pool, DeviceName: d.Device, ShareId: (*string)(d.ShareID)}
		for _, id := range d.CDIDevices {
			of.CdiDevices = append(of.CdiDevices, &podresourcesapi.CDIDevice{Name: id})
		}
		last.ClaimResources = append(last.ClaimResources, of)
	}
	return out
}

func topology(nodes ...int) *podresourcesapi.TopologyInfo {
	out := &podresourcesapi.TopologyInfo{}
	for _, node := range nodes {
		out.Nodes = append(out.Nodes, &podresourcesapi.NUMANode{ID: int64(node)})
	}
	return out
}
