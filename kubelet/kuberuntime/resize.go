package kuberuntime

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/container"
)

// noThrottling is the value of cm.MemoryHigh for a container that is never slowed down.
const noThrottling = "max"

// Resize is a running container whose CPU or memory limits in the runtime differ from its spec and change while it runs.
type Resize struct {
	Status    *container.ContainerStatus
	Container *corev1.Container
	// Want are the resources to set. A limit that is removed is -1.
	Want *runtimeapi.LinuxContainerResources
}

// resize plans the change of a running container's limits, if they differ from the spec's.
func (p *planner) resize(c *corev1.Container, s *container.ContainerStatus) {
	if cpu, memory := p.resourcesDiffer(c, s); cpu || memory || p.reservationDiffers(c, s) {
		want := p.in.Resources(c)
		want.CpusetCpus = "" // a container moves to other CPUs on its own
		have := s.Resources.GetLinux()
		if want.CpuQuota <= 0 && have.CpuQuota > 0 {
			want.CpuQuota = -1
		}
		if want.MemoryLimitInBytes <= 0 && have.MemoryLimitInBytes > 0 {
			want.MemoryLimitInBytes = -1
		}
		if have.Unified[cm.MemoryHigh] != "" && want.Unified[cm.MemoryHigh] == "" && want.Unified != nil {
			want.Unified[cm.MemoryHigh] = noThrottling
		}
		p.out.Resize = append(p.out.Resize, Resize{Status: s, Container: c, Want: want})
	}
}

// resourcesDiffer reports which of a container's resources differ from the spec. A runtime that does not report a
// container's resources is assumed to have set what was requested.
func (p *planner) resourcesDiffer(c *corev1.Container, s *container.ContainerStatus) (cpu, memory bool) {
	have := s.Resources.GetLinux()
	if p.in.Resources == nil || have == nil {
		return false, false
	}
	want := p.in.Resources(c)
	if want == nil {
		return false, false
	}
	cpu = have.CpuShares > 0 && want.CpuShares != have.CpuShares || max(want.CpuQuota, 0) != max(have.CpuQuota, 0) ||
		want.CpuQuota > 0 && want.CpuPeriod != have.CpuPeriod
	return cpu, max(want.MemoryLimitInBytes, 0) != max(have.MemoryLimitInBytes, 0)
}

// reservationDiffers reports whether the container's memory is reserved or throttled otherwise than it should be. No
// container is restarted for that.
func (p *planner) reservationDiffers(c *corev1.Container, s *container.ContainerStatus) bool {
	have := s.Resources.GetLinux().GetUnified()
	if p.in.Resources == nil || have == nil {
		return false
	}
	want := p.in.Resources(c).GetUnified()
	if want == nil {
		return false
	}
	return slices.ContainsFunc([]string{cm.MemoryMin, cm.MemoryLow, cm.MemoryHigh}, func(key string) bool {
		return strings.TrimSuffix(have[key], noThrottling) != want[key]
	})
}

// resizeNeedsRestart reports whether a resource has changed that the container can only get by a restart.
func (p *planner) resizeNeedsRestart(c *corev1.Container, s *container.ContainerStatus) bool {
	cpu, memory := p.resourcesDiffer(c, s)
	if p.in.ActuatedMemory != nil {
		request, known := p.in.ActuatedMemory(c.Name)
		memory = memory || known && request.Cmp(*c.Resources.Requests.Memory()) != 0
	}
	return cpu && RestartsOnResize(c, corev1.ResourceCPU) || memory && RestartsOnResize(c, corev1.ResourceMemory)
}

// RestartsOnResize reports whether the container is restarted for another amount of the resource.
func RestartsOnResize(c *corev1.Container, resource corev1.ResourceName) bool {
	return slices.ContainsFunc(c.ResizePolicy, func(p corev1.ContainerResizePolicy) bool {
		return p.ResourceName == resource && p.RestartPolicy == corev1.RestartContainer
	})
}
