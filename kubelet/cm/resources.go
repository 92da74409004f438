package cm

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	cgroupslib "github.com/opencontainers/cgroups"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/quantity"
	"github.com/berth-dev/berth/internal/resourcename"
	"github.com/berth-dev/berth/kubelet/qos"
)

const (
	minShares, maxShares = 2, 262144
	sharesPerCPU         = 1024
	minWeight, maxWeight = 1, 10000
	// DefaultQuotaPeriod is the period of CPU quotas, in microseconds.
	DefaultQuotaPeriod int64 = 100_000
	// minQuota is the smallest quota that the kernel accepts, in microseconds.
	minQuota int64 = 1000
)

// Shares converts thousandths of a CPU to the CPU shares of cgroup v1.
func Shares(milliCPU int64) int64 {
	if milliCPU > maxShares*1000/sharesPerCPU {
		return maxShares
	}
	return max(milliCPU*sharesPerCPU/1000, minShares)
}

// cpuWeight converts CPU shares to the CPU weight of cgroup v2; 0 stays 0: unset. The scale is linear, as upstream's for the cgroups above
// containers: the weight of a class is to be the sum of those of its Pods. The library's function, which runtimes use for containers, gives
// many Pods with small requests more than one Pod that requests as much as they do together.
func cpuWeight(shares int64) uint64 {
	switch {
	case shares == 0:
		return 0
	case shares >= maxShares:
		return maxWeight
	}
	return uint64(minWeight + max(shares-minShares, 0)*(maxWeight-minWeight)/(maxShares-minShares))
}

// Quota converts thousandths of a CPU to the CPU time in microseconds for each period. 0 stays 0: no limit.
func Quota(milliCPU, period int64) int64 {
	if milliCPU <= 0 {
		return 0
	}
	if milliCPU > math.MaxInt64/period {
		return math.MaxInt64 / 1000
	}
	return max(milliCPU*period/1000, minQuota)
}

// ResourceOptions is what the limits of containers depend on beside the Pod.
type ResourceOptions struct {
	// MemoryCapacity is the node's memory in bytes.
	MemoryCapacity int64
	// NoCPUQuota does not enforce CPU limits.
	NoCPUQuota bool
	// HasExclusiveCPUs reports whether a container of the Pod has CPUs of its own, whose time no quota limits; nil for none.
	HasExclusiveCPUs func(uid types.UID) bool
	// QuotaPeriod is the period of CPU quotas in microseconds; 0 means DefaultQuotaPeriod.
	QuotaPeriod int64
	// Unified says that the node has cgroup v2 only.
	Unified bool
	// SingleProcessOOMKill makes the kernel kill one process of a container that is out of memory, instead of all of
	// them. With cgroup v1 that is always so.
	SingleProcessOOMKill bool
	// Swap says that the kernel accounts for swap, so that a container's use of it can be limited.
	Swap bool
	// SwapBehavior decides which containers may use swap; SwapCapacity is that of the node, in bytes.
	SwapBehavior SwapBehavior
	SwapCapacity int64
	// HugePageSizes are the sizes of huge pages, like "2MB", that the kernel can limit.
	HugePageSizes []string
	// MemoryQoS reserves and throttles memory where the node has cgroup v2 only; nil does neither.
	MemoryQoS *MemoryQoSConfig
	// AllocatableMemory returns how much memory the node gives to Pods, in bytes, 0 while that is not known; it may be nil.
	AllocatableMemory func() int64
}

// DetectResourceOptions returns what can be read from the kernel: Unified, Swap, HugePageSizes. The caller sets the
// rest.
func DetectResourceOptions() ResourceOptions {
	opts := ResourceOptions{Unified: cgroupslib.IsCgroup2UnifiedMode()}
	if opts.Unified {
		found, _ := filepath.Glob("/sys/fs/cgroup/*/memory.swap.max") // the root group has no such file
		opts.Swap = len(found) > 0
		controllers, _ := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
		if slices.Contains(strings.Fields(string(controllers)), "hugetlb") {
			opts.HugePageSizes = cgroupslib.HugePageSizes()
		}
		return opts
	}
	if dir, err := cgroupslib.FindCgroupMountpoint("", "memory"); err == nil {
		opts.Swap = cgroupslib.PathExists(filepath.Join(dir, "memory.memsw.limit_in_bytes"))
	}
	if _, err := cgroupslib.FindCgroupMountpoint("", "hugetlb"); err == nil {
		opts.HugePageSizes = cgroupslib.HugePageSizes()
	}
	return opts
}

func (o ResourceOptions) period() int64 {
	if o.QuotaPeriod <= 0 {
		return DefaultQuotaPeriod
	}
	return o.QuotaPeriod
}

// ContainerResources returns the runtime's resources of a container. The Pod's own limits apply to what the container
// does not limit itself.
func ContainerResources(pod *corev1.Pod, c *corev1.Container,
	opts ResourceOptions) *runtimeapi.LinuxContainerResources {
	cpuLimit, memoryLimit := c.Resources.Limits.Cpu(), c.Resources.Limits.Memory()
	if pod.Spec.Resources != nil {
		if cpuLimit.IsZero() {
			cpuLimit = pod.Spec.Resources.Limits.Cpu()
		}
		if memoryLimit.IsZero() {
			memoryLimit = pod.Spec.Resources.Limits.Memory()
		}
	}
	cpu := cpuLimit // the request, or the limit if there is none
	if request, ok := c.Resources.Requests[corev1.ResourceCPU]; ok {
		cpu = &request
	}
	r := &runtimeapi.LinuxContainerResources{
		CpuShares:          Shares(cpu.MilliValue()),
		MemoryLimitInBytes: memoryLimit.Value(),
		OomScoreAdj:        qos.OOMScoreAdj(pod, c, opts.MemoryCapacity),
		HugepageLimits:     hugepageLimits(pod, c, opts),
	}
	if !opts.NoCPUQuota {
		r.CpuPeriod = opts.period()
		r.CpuQuota = Quota(cpuLimit.MilliValue(), r.CpuPeriod)
	}
	limitSwap(r, opts, swapLimit(pod, c, opts))
	setMemoryQoS(r, pod, c, opts)
	return r
}

// hugepageLimits limits every size of huge pages, to 0 unless the container, or else the Pod, sets another limit.
func hugepageLimits(pod *corev1.Pod, c *corev1.Container, opts ResourceOptions) []*runtimeapi.HugepageLimit {
	wanted := map[string]uint64{}
	if pod.Spec.Resources != nil {
		readHugepages(wanted, pod.Spec.Resources.Limits)
	}
	readHugepages(wanted, c.Resources.Limits)
	var limits []*runtimeapi.HugepageLimit
	for _, size := range opts.HugePageSizes {
		limits = append(limits, &runtimeapi.HugepageLimit{PageSize: size, Limit: wanted[size]})
	}
	return limits
}

// noHugepages returns a limit of 0 for every size of huge pages. Runtimes that are configured without the controller, as containerd is by
// default, do not limit those of containers: then the cgroup of the Pod is the only limit.
func (o ResourceOptions) noHugepages() map[string]uint64 {
	limits := map[string]uint64{}
	for _, size := range o.HugePageSizes {
		limits[size] = 0
	}
	return limits
}

// readHugepages adds the hugepages-* amounts of the list to wanted, in bytes by the kernel's name of the size.
func readHugepages(wanted map[string]uint64, list corev1.ResourceList) {
	for name, amount := range list {
		size, ok := resourcename.HugePageSize(name)
		if !ok || amount.Sign() < 0 {
			continue
		}
		pageSize, err := quantity.Parse(size)
		if err != nil {
			continue // the API server rejects such names
		}
		wanted[kernelPageSize(pageSize.Value())] = uint64(amount.Value())
	}
}

// kernelPageSize formats a size as the hugetlb controller does: "64KB", "2MB", "1GB".
func kernelPageSize(bytes int64) string {
	units := []string{"B", "KB", "MB", "GB", "TB", "PB"}
	i := 0
	for bytes >= 1024 && i < len(units)-1 {
		bytes /= 1024
		i++
	}
	return fmt.Sprintf("%d%s", bytes, units[i])
}

// Limits are the limits of one cgroup. A zero field leaves its limit unchanged.
type Limits struct {
	CPUShares int64 // in the units of cgroup v1
	// CPUQuota and CPUPeriod are in microseconds; a quota of -1 means no limit.
	CPUQuota, CPUPeriod int64
	Memory              int64 // bytes; -1 means no limit
	// MemoryMin and MemoryLow are bytes that the kernel reclaims never, or last; nil leaves them unchanged. Cgroup v2 only.
	MemoryMin, MemoryLow *int64
	Pids                 int64 // processes; -1 means no limit
	// Hugepages are bytes by size, like "2MB".
	Hugepages map[string]uint64
}

// PodLimits returns the limits of a Pod's cgroup: shares of all that its containers request; quota and memory if every
// container limits them; pidsLimit if it is positive; and the huge pages that they request, 0 of all other sizes.
func PodLimits(pod *corev1.Pod, pidsLimit int64, opts ResourceOptions) Limits {
	cpuLimited, memoryLimited := true, true
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{
		ContainerFn: func(list corev1.ResourceList, _ resourcehelper.ContainerType) {
			cpuLimited = cpuLimited && !list.Cpu().IsZero()
			memoryLimited = memoryLimited && !list.Memory().IsZero()
		},
	})
	if own := pod.Spec.Resources; own != nil {
		cpuLimited = cpuLimited || !own.Limits.Cpu().IsZero()
		memoryLimited = memoryLimited || !own.Limits.Memory().IsZero()
	}
	result := Limits{CPUShares: minShares, Hugepages: opts.noHugepages()}
	readHugepages(result.Hugepages, requests)
	if pidsLimit > 0 {
		result.Pids = pidsLimit
	}
	if qos.Class(pod) == corev1.PodQOSBestEffort {
		return result
	}
	result.CPUShares = Shares(requests.Cpu().MilliValue())
	result.reservePodMemory(pod, requests, opts)
	if cpuLimited && !limits.Cpu().IsZero() {
		result.CPUPeriod, result.CPUQuota = opts.period(), Quota(limits.Cpu().MilliValue(), opts.period())
		if opts.NoCPUQuota || opts.HasExclusiveCPUs != nil && opts.HasExclusiveCPUs(pod.UID) {
			result.CPUQuota = -1
		}
	}
	if memoryLimited && !limits.Memory().IsZero() {
		result.Memory = limits.Memory().Value()
	}
	return result
}
