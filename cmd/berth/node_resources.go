package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/settings"
)

// seccompDefaultUsage is the help of --seccomp-default.
const seccompDefaultUsage = "run containers that name no seccomp profile with the container runtime's default one,\ninstead of without any"

// swapUsage is the help of --swap-behavior.
const swapUsage = "which Pods may use swap: none (NoSwap), or Burstable Pods in proportion to\ntheir memory requests (LimitedSwap, cgroup v2 only)"

// resourceFlags configure which resources of the machine Pods may use. They are named as the kubelet's flags, or as the
// fields of its configuration file where it has no flag.
type resourceFlags struct {
	kubeReserved, systemReserved             map[string]string
	kubeReservedCgroup, systemReservedCgroup string
	enforce                                  []string
	podPids                                  int64
	failSwapOn, failCgroupV1, oneOOMKill     bool
	seccompDefault                           bool
	swap                                     string

	flags *pflag.FlagSet
}

func (r *resourceFlags) add(f *pflag.FlagSet) {
	r.flags = f
	f.StringToStringVar(&r.kubeReserved, "kube-reserved", nil,
		"resources reserved for Kubernetes daemons: cpu=100m,memory=200Mi")
	f.StringToStringVar(&r.systemReserved, "system-reserved", nil, "resources reserved for system daemons")
	f.StringSliceVar(&r.enforce, "enforce-node-allocatable", []string{cm.EnforcePods},
		"reservations that cgroups enforce: none, or some of pods, kube-reserved,\nkube-reserved-compressible, system-reserved, "+
			"system-reserved-compressible")
	f.StringVar(&r.kubeReservedCgroup, "kube-reserved-cgroup", "", "the cgroup of Kubernetes daemons, which must exist")
	f.StringVar(&r.systemReservedCgroup, "system-reserved-cgroup", "", "the cgroup of system daemons, which must exist")
	f.Int64Var(&r.podPids, "pod-max-pids", -1, "maximum number of processes per Pod; -1: unlimited")
	f.BoolVar(&r.failSwapOn, "fail-swap-on", false, "fail to start on a machine that has swap")
	f.BoolVar(&r.seccompDefault, "seccomp-default", false, seccompDefaultUsage)
	f.BoolVar(&r.failCgroupV1, "fail-cgroup-v1", false, "fail to start on a machine that has cgroup v1 only")
	f.StringVar(&r.swap, "swap-behavior", string(cm.NoSwap), swapUsage)
	f.BoolVar(&r.oneOOMKill, "single-process-oom-kill", false,
		"kill only one process of a container that is out of memory (always so with cgroup v1)")
}

// kubeletConfigUsage is the help of --kubelet-config.
const kubeletConfigUsage = "`file` with a KubeletConfiguration, for what no flag stands for: policies of the CPU, memory and topology manager,\n" +
	"maxPods, containerLogMaxSize and others; a field that the command decides itself is refused"

// set copies the flags into the configuration.
func (r *resourceFlags) set(c *settings.Configuration) error {
	if err := cm.SwapBehavior(r.swap).Validate(); err != nil {
		return usageError{fmt.Errorf("--swap-behavior: %w", err)}
	}
	c.KubeReserved, c.SystemReserved, c.EnforceNodeAllocatable = r.kubeReserved, r.systemReserved, r.enforce
	c.KubeReservedCgroup, c.SystemReservedCgroup = r.kubeReservedCgroup, r.systemReservedCgroup
	c.PodPidsLimit, c.FailSwapOn, c.FailCgroupV1, c.SeccompDefault = &r.podPids, &r.failSwapOn, &r.failCgroupV1, &r.seccompDefault
	c.MemorySwap.SwapBehavior = r.swap
	if r.flags.Changed("single-process-oom-kill") {
		c.SingleProcessOOMKill = &r.oneOOMKill
	}
	return nil
}
