package settings

import "slices"

// policyNone is the policy of a manager that does nothing.
const policyNone = "none"

// resourceFields are the fields of the node's resources.
func resourceFields() []Field {
	return slices.Concat(cgroupFields(), reservationFields(), managerFields(), evictionFields())
}

func cgroupFields() []Field {
	return []Field{
		{Path: "cgroupRoot", Flag: "cgroup-root", Support: Honoured, Does: "the parent of all Pods' cgroups; empty: the topmost one"},
		{Path: "cgroupDriver", Flag: "cgroup-driver", Support: Honoured,
			Does: "cgroupfs or systemd, for a container runtime that does not report its own; the reported one is used otherwise"},
		{Path: "cgroupsPerQOS", Flag: "cgroups-per-qos", Support: Refused, Does: "gives each QoS class and each Pod a cgroup",
			Limit: "want true: this kubelet enforces the resources of Pods with their cgroups"},
		{Path: "kubeletCgroups", Flag: "kubelet-cgroups", Support: Honoured, Does: "the cgroup that the kubelet moves itself to, which it creates"},
		{Path: "systemCgroups", Flag: "system-cgroups", Support: Honoured,
			Does: "the cgroup that all processes of the topmost cgroup are moved to, those of the kernel excepted"},
		{Path: "podPidsLimit", Flag: "pod-max-pids", Support: Honoured, Does: "how many processes a Pod may have; -1: no limit of its own"},
		{Path: "cpuCFSQuota", Flag: "cpu-cfs-quota", Support: Honoured, Does: "has the kernel enforce CPU limits"},
		{Path: "cpuCFSQuotaPeriod", Flag: "cpu-cfs-quota-period", Support: Honoured, Does: "the period in which the kernel enforces CPU limits, 1 ms to 1 s"},
		{Path: "singleProcessOOMKill", Support: Honoured,
			Does: "has the kernel kill one process of a container that is out of memory, in place of all; false needs cgroup v2"},
		{Path: "memorySwap.swapBehavior", Support: Honoured, Does: "which Pods may use swap: none (NoSwap), or Burstable ones in proportion to their requests (LimitedSwap, cgroup v2)"},
		{Path: "failSwapOn", Flag: "fail-swap-on", Support: Honoured, Does: "refuses to start on a machine with swap"},
		{Path: "failCgroupV1", Flag: "fail-cgroupv1", Support: Honoured, Does: "refuses to start on a machine with cgroup v1 only"},
	}
}

func reservationFields() []Field {
	return []Field{
		{Path: "systemReserved", Flag: "system-reserved", Support: Honoured,
			Does: "what is reserved for system daemons: cpu, memory, ephemeral-storage, pid"},
		{Path: "kubeReserved", Flag: "kube-reserved", Support: Honoured, Does: "what is reserved for the daemons of Kubernetes"},
		{Path: "reservedSystemCPUs", Flag: "reserved-cpus", Support: Honoured,
			Does: "a list of CPUs, whose number is reserved in place of the cpu of systemReserved and kubeReserved"},
		{Path: "systemReservedCgroup", Flag: "system-reserved-cgroup", Support: Honoured, Does: "the cgroup of system daemons"},
		{Path: "kubeReservedCgroup", Flag: "kube-reserved-cgroup", Support: Honoured, Does: "the cgroup of the daemons of Kubernetes"},
		{Path: "enforceNodeAllocatable", Flag: "enforce-node-allocatable", Support: Honoured,
			Does: "what cgroups enforce: none, or some of pods, system-reserved, system-reserved-compressible, kube-reserved, kube-reserved-compressible"},
		{Path: "localStorageCapacityIsolation", Flag: "local-storage-capacity-isolation", Support: Refused,
			Does:  "counts and limits ephemeral storage",
			Limit: "want true: this kubelet counts ephemeral storage wherever statfs(2) can"},
		{Path: "qosReserved", Flag: "qos-reserved", Support: Refused, Does: "reserves the requests of higher QoS classes",
			Limit: "want none: it is an alpha feature of Kubernetes that this kubelet does not have"},
	}
}

func managerFields() []Field {
	return []Field{
		{Path: "cpuManagerPolicy", Flag: "cpu-manager-policy", Support: Refused, Does: "gives containers CPUs of their own",
			Limit: "want none: this kubelet has no CPU manager yet"},
		{Path: "cpuManagerPolicyOptions", Flag: "cpu-manager-policy-options", Support: Refused, Does: "options of the CPU manager's policy",
			Limit: "want none: the policy none has no options"},
		{Path: "cpuManagerReconcilePeriod", Flag: "cpu-manager-reconcile-period", Support: Moot,
			Does: "how often the CPU manager reconciles; the policy none has nothing to reconcile"},
		{Path: "memoryManagerPolicy", Flag: "memory-manager-policy", Support: Refused, Does: "gives containers memory of chosen NUMA nodes",
			Limit: "want None: this kubelet has no memory manager yet"},
		{Path: "reservedMemory", Flag: "reserved-memory", Support: Refused, Does: "what the memory manager reserves of each NUMA node",
			Limit: "want none: this kubelet has no memory manager yet"},
		{Path: "topologyManagerPolicy", Flag: "topology-manager-policy", Support: Refused, Does: "aligns the resources of a Pod on NUMA nodes",
			Limit: "want none: this kubelet has no topology manager yet"},
		{Path: "topologyManagerScope", Flag: "topology-manager-scope", Support: Moot,
			Does: "what the topology manager aligns, containers or Pods; the policy none aligns nothing"},
		{Path: "topologyManagerPolicyOptions", Flag: "topology-manager-policy-options", Support: Refused, Does: "options of the topology manager's policy",
			Limit: "want none: this kubelet has no topology manager yet"},
		{Path: "memoryThrottlingFactor", Support: Honoured,
			Does: "with the feature gate MemoryQoS and cgroup v2: where between its request and its limit of memory the kernel slows a container down"},
		{Path: "memoryReservationPolicy", Support: Honoured,
			Does: "with the feature gate MemoryQoS and cgroup v2: whether the kernel keeps requested memory from being reclaimed (None, TieredReservation)"},
	}
}

func evictionFields() []Field {
	return []Field{
		{Path: "evictionHard", Flag: "eviction-hard", Support: Honoured,
			Does: "the thresholds SIGNAL<AMOUNT of memory, file systems and process IDs below which the Node has a pressure condition, takes no new Pods and " +
				"evicts Pods at once; allocatable is smaller by them. A kubelet without configuration file has none, as upstream's"},
		{Path: "evictionSoft", Flag: "eviction-soft", Support: Honoured,
			Does: "thresholds like those of evictionHard that evict Pods when they have been met for a grace period"},
		{Path: "evictionSoftGracePeriod", Flag: "eviction-soft-grace-period", Support: Honoured,
			Does: "the grace period of each threshold of evictionSoft: SIGNAL=DURATION"},
		{Path: "evictionPressureTransitionPeriod", Flag: "eviction-pressure-transition-period", Support: Honoured,
			Does: "how long a pressure condition outlasts its cause"},
		{Path: "evictionMaxPodGracePeriod", Flag: "eviction-max-pod-grace-period", Support: Honoured,
			Does: "the longest grace period, in seconds, of a Pod that a soft threshold evicts"},
		{Path: "evictionMinimumReclaim", Flag: "eviction-minimum-reclaim", Support: Honoured,
			Does: "how much more than its threshold of a resource, SIGNAL=AMOUNT, has to be available before evictions end"},
		{Path: "mergeDefaultEvictionSettings", Support: Honoured,
			Does: "adds the default thresholds to those of evictionHard in the configuration file"},
		{Path: "kernelMemcgNotification", Flag: "kernel-memcg-notification", Support: Moot,
			Does: "has the kernel report the use of memory for eviction; this kubelet always has it do so"},
	}
}
