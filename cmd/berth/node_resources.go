package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/kubelet"
	"github.com/berth-dev/berth/kubelet/cm"
)

// resourceFlags say how much of the machine is for Pods. They have upstream's names where it has such flags, and those of
// the fields of its configuration file elsewhere.
type resourceFlags struct {
	kubeReserved, systemReserved             map[string]string
	kubeReservedCgroup, systemReservedCgroup string
	enforce                                  []string
	podPids                                  int64
	failSwapOn, failCgroupV1, oneOOMKill     bool
	swap                                     string

	set *pflag.FlagSet
}

func (r *resourceFlags) add(f *pflag.FlagSet) {
	r.set = f
	f.StringToStringVar(&r.kubeReserved, "kube-reserved", nil,
		"what Pods may not use for Kubernetes' programs: cpu=100m,memory=200Mi")
	f.StringToStringVar(&r.systemReserved, "system-reserved", nil, "what Pods may not use for the system's programs")
	f.StringSliceVar(&r.enforce, "enforce-node-allocatable", []string{kubelet.EnforcePods},
		"who is held to that by cgroups: none, or some of pods, kube-reserved,\nkube-reserved-compressible, system-reserved, "+
			"system-reserved-compressible")
	f.StringVar(&r.kubeReservedCgroup, "kube-reserved-cgroup", "", "the cgroup of Kubernetes' programs, which has to be there")
	f.StringVar(&r.systemReservedCgroup, "system-reserved-cgroup", "", "the cgroup of the system's programs, which has to be there")
	f.Int64Var(&r.podPids, "pod-max-pids", -1, "how many processes one Pod may have; -1: any number")
	f.BoolVar(&r.failSwapOn, "fail-swap-on", false, "refuse to run on a machine that has swap")
	f.BoolVar(&r.failCgroupV1, "fail-cgroup-v1", false, "refuse to run on a machine that has cgroup v1 only")
	f.StringVar(&r.swap, "swap-behavior", string(cm.NoSwap),
		"who may use swap: NoSwap, or LimitedSwap for Burstable Pods in proportion to\nthe memory they ask for (cgroup v2 only)")
	f.BoolVar(&r.oneOOMKill, "single-process-oom-kill", false,
		"kill one process of a container that is out of memory, not all (always so with cgroup v1)")
}

// apply puts the flags into the configuration, which the node agent checks as a whole.
func (r *resourceFlags) apply(c *kubelet.Config) error {
	reserved, err := kubelet.ParseReservation(r.kubeReserved, r.systemReserved)
	if err != nil {
		return usageError{err}
	}
	c.KubeReserved, c.SystemReserved = reserved.Kubernetes, reserved.System
	c.KubeReservedCgroup, c.SystemReservedCgroup = r.kubeReservedCgroup, r.systemReservedCgroup
	c.EnforceNodeAllocatable, c.PodPidsLimit = r.enforce, r.podPids
	c.FailSwapOn, c.FailCgroupV1 = r.failSwapOn, r.failCgroupV1
	if c.SwapBehavior = cm.SwapBehavior(r.swap); c.SwapBehavior.Validate() != nil {
		return usageError{fmt.Errorf("--swap-behavior: %w", c.SwapBehavior.Validate())}
	}
	if r.set.Changed("single-process-oom-kill") {
		c.SingleProcessOOMKill = &r.oneOOMKill
	}
	if err := c.CheckEnforcement(); err != nil {
		return usageError{fmt.Errorf("--enforce-node-allocatable: %w", err)}
	}
	return nil
}
