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
		{Path: "cpuManagerPolicy", Flag: "cpu-manager-policy", Support: Honoured,
			Does: "static gives containers of Guaranteed Pods that request whole CPUs CPUs of their own; it needs reserved CPUs"},
		{Path: "cpuManagerPolicyOptions", Flag: "cpu-manager-policy-options", Support: Limited,
			Does: "options of the policy static: full-pcpus-only, distribute-cpus-across-numa, strict-cpu-reservation, " +
				"prefer-align-cpus-by-uncorecache: 'true'",
			Limit: "align-by-socket and distribute-cpus-across-cores are alpha features of Kubernetes that this kubelet does not have", Limits: hasAlphaCPUOption},
		{Path: "cpuManagerReconcilePeriod", Flag: "cpu-manager-reconcile-period", Support: Moot,
			Does: "how often the CPU manager compares the CPUs of containers with those that it has chosen; this kubelet changes them at once"},
		{Path: "memoryManagerPolicy", Flag: "memory-manager-policy", Support: Honoured,
			Does: "Static gives containers of Guaranteed Pods memory of chosen NUMA nodes"},
		{Path: "reservedMemory", Flag: "reserved-memory", Support: Honoured,
			Does: "with the policy Static: what the memory manager reserves of each NUMA node, together as much as systemReserved, kubeReserved and evictionHard"},
		{Path: "topologyManagerPolicy", Flag: "topology-manager-policy", Support: Honoured,
			Does: "aligns CPUs, memory and devices on NUMA nodes: best-effort tries to, restricted and single-numa-node reject other Pods"},
		{Path: "topologyManagerScope", Flag: "topology-manager-scope", Support: Honoured,
			Does: "what the topology manager aligns: the resources of each container, or of a pod as a whole"},
		{Path: "topologyManagerPolicyOptions", Flag: "topology-manager-policy-options", Support: Honoured,
			Does: "options of a policy but none: prefer-closest-numa-nodes: 'true', max-allowable-numa-nodes: '16'"},
		{Path: "memoryThrottlingFactor", Support: Honoured,
			Does: "with the feature gate MemoryQoS and cgroup v2: where between its request and its limit of memory the kernel slows a container down"},
		{Path: "memoryReservationPolicy", Support: Honoured,
			Does: "with the feature gate MemoryQoS and cgroup v2: whether the kernel keeps requested memory from being reclaimed (None, TieredReservation)"},
	}
}

// alphaCPUOptions are the options of the CPU manager that Kubernetes has as alpha features.
func alphaCPUOptions() []string { return []string{"align-by-socket", "distribute-cpus-across-cores"} }

func hasAlphaCPUOption(c *Configuration) bool {
	return slices.ContainsFunc(alphaCPUOptions(), func(name string) bool { _, set := c.CPUManagerPolicyOptions[name]; return set })
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
			Does: "the longest grace period, in seconds, of a Pod that a soft threshold evicts; negative: each has its own"},
		{Path: "evictionMinimumReclaim", Flag: "eviction-minimum-reclaim", Support: Honoured,
			Does: "how much more than its threshold of a resource, SIGNAL=AMOUNT, has to be available before evictions end"},
		{Path: "mergeDefaultEvictionSettings", Support: Honoured,
			Does: "adds the default thresholds to those of evictionHard in the configuration file and its drop-in files"},
		{Path: "kernelMemcgNotification", Flag: "kernel-memcg-notification", Support: Moot,
			Does: "has the kernel report the use of memory for eviction; this kubelet always has it do so"},
	}
}
