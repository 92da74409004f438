package kubeletfile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/internal/cpulist"
	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/options"
	"github.com/berth-dev/berth/kubelet/settings"
)

// File is what a KubeletConfiguration says.
type File struct {
	chosen *settings.Settings
	fields []string
}

// Read reads a KubeletConfiguration. It fails for a field that the cluster decides itself or by a flag, as for one that does not exist:
// nothing in the file is without effect.
func Read(path string) (*File, error) {
	c, names, err := options.ReadFile(path)
	if err != nil {
		return nil, err
	}
	known, f := fields(), &File{}
	var refused []string
	for _, name := range names {
		switch {
		case name == "apiVersion" || name == "kind":
		case known[name] != nil:
			f.fields = append(f.fields, name)
		default:
			refused = append(refused, name+advice(name))
		}
	}
	if len(refused) > 0 {
		return nil, fmt.Errorf("read configuration file %q: the command or one of its flags decides these fields: %s; the file may have %s", path,
			strings.Join(refused, ", "), strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	}
	if f.chosen, err = settings.Convert(c); err != nil {
		return nil, fmt.Errorf("configuration file %q: %w", path, err)
	}
	if len(f.chosen.Warnings) > 0 {
		return nil, fmt.Errorf("configuration file %q: %w", path, errors.New(strings.Join(f.chosen.Warnings, "; ")))
	}
	return f, nil
}

// Apply sets in an agent's configuration what the file says.
func (f *File) Apply(to *agent.Config) {
	known := fields()
	for _, name := range f.fields {
		known[name](to, &f.chosen.Agent)
	}
}

// advice names the flag that stands for a field; empty if there is none.
func advice(name string) string {
	for flag, names := range map[string][]string{
		"--kube-reserved": {"kubeReserved"}, "--system-reserved": {"systemReserved"}, "--pod-max-pids": {"podPidsLimit"},
		"--swap-behavior": {"memorySwap"}, "--seccomp-default": {"seccompDefault"}, "--resolv-conf": {"resolvConf"},
		"--pod-manifest-path": {"staticPodPath"}, "--oom-score-adj": {"oomScoreAdj"}, "--feature-gates": {"featureGates"},
		"--eviction-hard": {"evictionHard"}, "--eviction-soft": {"evictionSoft"}, "--eviction-soft-grace-period": {"evictionSoftGracePeriod"},
		"--shutdown-grace-period": {"shutdownGracePeriod"}, "--verbosity": {"logging"},
	} {
		if slices.Contains(names, name) {
			return " (" + flag + ")"
		}
	}
	return ""
}

// setter copies a field's part of one configuration to another.
type setter func(to, from *agent.Config)

// fields are those that the file may have.
func fields() map[string]setter {
	managers := func(to, from *agent.Config) { to.Managers = from.Managers }
	collection := func(to, from *agent.Config) {
		to.Images.GCHigh, to.Images.GCLow = from.Images.GCHigh, from.Images.GCLow
	}
	pulls := func(to, from *agent.Config) { to.Images.MaxParallelPulls = from.Images.MaxParallelPulls }
	rate := func(to, from *agent.Config) {
		to.Images.PullQPS, to.Images.PullBurst = from.Images.PullQPS, from.Images.PullBurst
	}
	return map[string]setter{
		"cpuManagerPolicy": managers, "cpuManagerPolicyOptions": managers, "memoryManagerPolicy": managers, "reservedMemory": managers,
		"topologyManagerPolicy": managers, "topologyManagerScope": managers, "topologyManagerPolicyOptions": managers,
		"reservedSystemCPUs":          reserveCPUs,
		"cpuCFSQuota":                 func(to, from *agent.Config) { to.Cgroups.NoCPUQuota = from.Cgroups.NoCPUQuota },
		"cpuCFSQuotaPeriod":           func(to, from *agent.Config) { to.Cgroups.CPUQuotaPeriod = from.Cgroups.CPUQuotaPeriod },
		"maxPods":                     func(to, from *agent.Config) { to.Pods.Max = from.Pods.Max },
		"podsPerCore":                 func(to, from *agent.Config) { to.Pods.MaxPerCore = from.Pods.MaxPerCore },
		"allowedUnsafeSysctls":        func(to, from *agent.Config) { to.Pods.AllowedUnsafeSysctls = from.Pods.AllowedUnsafeSysctls },
		"crashLoopBackOff":            func(to, from *agent.Config) { to.Pods.MaxBackoff = from.Pods.MaxBackoff },
		"userNamespaces":              func(to, from *agent.Config) { to.Pods.IDsPerPod = from.Pods.IDsPerPod },
		"containerLogMaxSize":         func(to, from *agent.Config) { to.Logs.MaxSize = from.Logs.MaxSize },
		"containerLogMaxFiles":        func(to, from *agent.Config) { to.Logs.MaxFiles = from.Logs.MaxFiles },
		"imageGCHighThresholdPercent": collection, "imageGCLowThresholdPercent": collection,
		"imageMinimumGCAge": func(to, from *agent.Config) { to.Images.MinAge = from.Images.MinAge },
		"imageMaximumGCAge": func(to, from *agent.Config) { to.Images.MaxAge = from.Images.MaxAge },
		"registryPullQPS":   rate, "registryBurst": rate, "serializeImagePulls": pulls, "maxParallelImagePulls": pulls,
		"registerWithTaints":   func(to, from *agent.Config) { to.Node.Taints = from.Node.Taints },
		"singleProcessOOMKill": func(to, from *agent.Config) { to.Cgroups.SingleProcessOOMKill = from.Cgroups.SingleProcessOOMKill },
	}
}

// reserveCPUs reserves the CPUs that the file names, in place of an amount.
func reserveCPUs(to, from *agent.Config) {
	cpus, err := cpulist.Parse(from.Cgroups.ReservedCPUs)
	if err != nil || cpus.IsEmpty() {
		return // settings.Convert has checked it
	}
	to.Cgroups.ReservedCPUs = from.Cgroups.ReservedCPUs
	enforcement := &to.Cgroups.Enforcement
	enforcement.KubeReserved, enforcement.SystemReserved = maps.Clone(enforcement.KubeReserved), maps.Clone(enforcement.SystemReserved)
	delete(enforcement.KubeReserved, corev1.ResourceCPU)
	if enforcement.SystemReserved == nil {
		enforcement.SystemReserved = corev1.ResourceList{}
	}
	enforcement.SystemReserved[corev1.ResourceCPU] = *resource.NewQuantity(int64(cpus.Size()), resource.DecimalSI)
}
