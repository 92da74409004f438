package container

import (
	"slices"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// apply changes the resources of a container as runc's update command does: a value that is not given stays. CPU sets, the
// number of processes and unified values that are not given are not written.
func apply(to *cgroups.Resources, from *specs.LinuxResources) {
	applyCPU(to, from.CPU)
	applyMemory(to, from.Memory)
	applyBlockIO(to, from.BlockIO)
	to.PidsLimit = nil
	if from.Pids != nil {
		to.PidsLimit = from.Pids.Limit
	}
	to.Unified = from.Unified
	// The devices of a running container do not change.
	to.SkipDevices = true
}

func applyCPU(to *cgroups.Resources, cpu *specs.LinuxCPU) {
	if cpu == nil {
		cpu = &specs.LinuxCPU{}
	}
	period, quota := value(cpu.Period), value(cpu.Quota)
	switch {
	case (period == 0) == (quota == 0): // both or none
		to.CpuPeriod, to.CpuQuota = period, quota
	case period != 0:
		to.CpuPeriod = period
	default:
		to.CpuQuota = quota
	}
	to.CpuBurst, to.CPUIdle = cpu.Burst, cpu.Idle
	shares := cpu.Shares
	if cpu.Idle != nil && shares == nil {
		shares = new(uint64) // a weight cannot be written while the cgroup is idle
	}
	if shares != nil {
		to.CpuShares, to.CpuWeight = *shares, cgroups.ConvertCPUSharesToCgroupV2Value(*shares)
	}
	set(&to.CpuRtPeriod, cpu.RealtimePeriod)
	set(&to.CpuRtRuntime, cpu.RealtimeRuntime)
	to.CpusetCpus, to.CpusetMems = cpu.Cpus, cpu.Mems
}

func applyMemory(to *cgroups.Resources, memory *specs.LinuxMemory) {
	if memory == nil {
		return
	}
	swap := memory.Swap
	if value(memory.Limit) == -1 && swap == nil {
		swap = new(int64) // a limit of swap needs one of memory
	}
	set(&to.Memory, memory.Limit)
	set(&to.MemoryReservation, memory.Reservation)
	set(&to.MemorySwap, swap)
	set(&to.MemoryCheckBeforeUpdate, memory.CheckBeforeUpdate)
}

func applyBlockIO(to *cgroups.Resources, io *specs.LinuxBlockIO) {
	if io == nil {
		return
	}
	set(&to.BlkioWeight, io.Weight)
	set(&to.BlkioLeafWeight, io.LeafWeight)
	for _, device := range io.WeightDevice {
		known := slices.IndexFunc(to.BlkioWeightDevice, func(d *cgroups.WeightDevice) bool {
			return d.Major == device.Major && d.Minor == device.Minor
		})
		if known < 0 {
			to.BlkioWeightDevice = append(to.BlkioWeightDevice,
				cgroups.NewWeightDevice(device.Major, device.Minor, value(device.Weight), value(device.LeafWeight)))
			continue
		}
		set(&to.BlkioWeightDevice[known].Weight, device.Weight)
		set(&to.BlkioWeightDevice[known].LeafWeight, device.LeafWeight)
	}
	for _, limits := range []struct {
		to   *[]*cgroups.ThrottleDevice
		from []specs.LinuxThrottleDevice
	}{
		{&to.BlkioThrottleReadBpsDevice, io.ThrottleReadBpsDevice},
		{&to.BlkioThrottleWriteBpsDevice, io.ThrottleWriteBpsDevice},
		{&to.BlkioThrottleReadIOPSDevice, io.ThrottleReadIOPSDevice},
		{&to.BlkioThrottleWriteIOPSDevice, io.ThrottleWriteIOPSDevice},
	} {
		for _, device := range limits.from {
			applyThrottle(limits.to, device)
		}
	}
}

func applyThrottle(to *[]*cgroups.ThrottleDevice, device specs.LinuxThrottleDevice) {
	for _, known := range *to {
		if known.Major == device.Major && known.Minor == device.Minor {
			known.Rate = device.Rate
			return
		}
	}
	*to = append(*to, cgroups.NewThrottleDevice(device.Major, device.Minor, device.Rate))
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

func value[T any](from *T) (v T) {
	if from != nil {
		v = *from
	}
	return v
}
