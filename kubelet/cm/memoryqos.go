package cm

import (
	"fmt"
	"os"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/kubelet/qos"
)

// Keys, among LinuxContainerResources.Unified, of the memory that the kernel reclaims never, reclaims last, and above which
// it slows the container down.
const (
	MemoryMin  = "memory.min"
	MemoryLow  = "memory.low"
	MemoryHigh = "memory.high"
)

// DefaultMemoryThrottlingFactor is the default of MemoryQoSConfig.ThrottlingFactor.
const DefaultMemoryThrottlingFactor = 0.9

// MemoryQoSConfig configures the quality of service of memory (KEP-2570). It needs cgroup v2.
type MemoryQoSConfig struct {
	// ThrottlingFactor is where between its request and its limit of memory (that of the node without one) a container is
	// slowed down: above 0, at most 1; DefaultMemoryThrottlingFactor if zero.
	ThrottlingFactor float64
	// ReservationPolicy says whether the kernel keeps the requested memory from being reclaimed: that of Guaranteed Pods in
	// any case, that of Burstable ones as long as there is other memory. Empty is None.
	ReservationPolicy kubeletconfig.MemoryReservationPolicy
}

// Validate returns an error that names the field of KubeletConfiguration that is wrong. No configuration is valid.
func (c *MemoryQoSConfig) Validate() error {
	if c == nil {
		return nil
	}
	if c.ThrottlingFactor < 0 || c.ThrottlingFactor > 1 {
		return fmt.Errorf("memoryThrottlingFactor %v: want a number above 0 and at most 1", c.ThrottlingFactor)
	}
	switch c.ReservationPolicy {
	case "", kubeletconfig.NoneMemoryReservationPolicy, kubeletconfig.TieredReservationMemoryReservationPolicy:
		return nil
	default:
		return fmt.Errorf("memoryReservationPolicy %q: want %s or %s", c.ReservationPolicy,
			kubeletconfig.NoneMemoryReservationPolicy, kubeletconfig.TieredReservationMemoryReservationPolicy)
	}
}

// Reserves reports whether requested memory is kept from being reclaimed.
func (c *MemoryQoSConfig) Reserves() bool {
	return c != nil && c.ReservationPolicy == kubeletconfig.TieredReservationMemoryReservationPolicy
}

// setMemoryQoS adds to a container's resources how its memory is reserved and throttled.
func setMemoryQoS(r *runtimeapi.LinuxContainerResources, pod *corev1.Pod, c *corev1.Container, opts ResourceOptions) {
	if opts.MemoryQoS == nil || !opts.Unified {
		return
	}
	if r.Unified == nil {
		r.Unified = map[string]string{}
	}
	request, limit := c.Resources.Requests.Memory().Value(), c.Resources.Limits.Memory().Value()
	switch {
	case request == 0 || !opts.MemoryQoS.Reserves():
		r.Unified[MemoryMin], r.Unified[MemoryLow] = "0", "0"
	case qos.Class(pod) == corev1.PodQOSGuaranteed:
		r.Unified[MemoryMin] = strconv.FormatInt(request, 10)
	default:
		r.Unified[MemoryLow] = strconv.FormatInt(request, 10)
	}
	if high := memoryHigh(request, limit, opts); high > request {
		r.Unified[MemoryHigh] = strconv.FormatInt(high, 10)
	}
}

// memoryHigh returns the memory above which a container is slowed down, in whole pages; 0 for one that cannot use more than
// it requests, and for one that requests and limits nothing.
func memoryHigh(request, limit int64, opts ResourceOptions) int64 {
	if request == limit {
		return 0
	}
	if limit == 0 && opts.AllocatableMemory != nil {
		limit = opts.AllocatableMemory()
	}
	if limit == 0 {
		return 0
	}
	factor := opts.MemoryQoS.ThrottlingFactor
	if factor == 0 {
		factor = DefaultMemoryThrottlingFactor
	}
	page := int64(os.Getpagesize())
	return int64(float64(request)+float64(limit-request)*factor) / page * page
}

// reservePodMemory sets the reserved memory of a Pod's cgroup.
func (l *Limits) reservePodMemory(pod *corev1.Pod, requests corev1.ResourceList, opts ResourceOptions) {
	request := requests.Memory().Value()
	if !opts.Unified || !opts.MemoryQoS.Reserves() || request == 0 {
		return
	}
	if qos.Class(pod) == corev1.PodQOSGuaranteed {
		l.MemoryMin = &request
	} else {
		l.MemoryLow = &request
	}
}

// Requests are what the active Pods of the classes request together.
type Requests struct {
	// BurstableCPU is in thousandths of a CPU; the others are in bytes.
	BurstableCPU                      int64
	BurstableMemory, GuaranteedMemory int64
}

// RequestsOf returns what a Pod adds to Requests. Without memory, that is left out.
func RequestsOf(pod *corev1.Pod, memory bool) Requests {
	var r Requests
	class := qos.Class(pod)
	if class == corev1.PodQOSBestEffort || class == corev1.PodQOSGuaranteed && !memory {
		return r
	}
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	bytes := int64(0)
	if memory {
		bytes = requests.Memory().Value()
	}
	if class == corev1.PodQOSGuaranteed {
		r.GuaranteedMemory = bytes
	} else {
		r.BurstableCPU, r.BurstableMemory = requests.Cpu().MilliValue(), bytes
	}
	return r
}

// Replace returns the sum with an old part replaced by a new one.
func (r Requests) Replace(old, next Requests) Requests {
	return Requests{
		BurstableCPU:     r.BurstableCPU - old.BurstableCPU + next.BurstableCPU,
		BurstableMemory:  r.BurstableMemory - old.BurstableMemory + next.BurstableMemory,
		GuaranteedMemory: r.GuaranteedMemory - old.GuaranteedMemory + next.GuaranteedMemory,
	}
}

// classLimits returns the limits of the cgroups of all Pods and of all Burstable Pods for the sums of the requests. A part
// of the hierarchy reserves memory only as far as all above it do.
func classLimits(requests Requests, opts ResourceOptions) (all, burstable Limits) {
	burstable.CPUShares = Shares(requests.BurstableCPU)
	if opts.MemoryQoS == nil || !opts.Unified {
		return all, burstable
	}
	minimum, low := int64(0), int64(0)
	if opts.MemoryQoS.Reserves() {
		minimum, low = requests.GuaranteedMemory+requests.BurstableMemory, requests.BurstableMemory
	}
	all.MemoryMin, burstable.MemoryLow = &minimum, &low
	return all, burstable
}
