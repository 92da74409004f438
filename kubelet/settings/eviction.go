package settings

import (
	"slices"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/eviction"
)

// convertEviction returns the settings of eviction.
func convertEviction(c *Configuration) eviction.Config {
	out := eviction.Config{
		Hard: c.EvictionHard, Soft: c.EvictionSoft, SoftGracePeriod: c.EvictionSoftGracePeriod, MinimumReclaim: c.EvictionMinimumReclaim,
		PressureTransitionPeriod: chosen(c.EvictionPressureTransitionPeriod), MaxPodGracePeriod: int64(c.EvictionMaxPodGracePeriod),
	}
	if out.Hard == nil {
		out.Hard = map[string]string{} // none, and not the defaults
	}
	return out
}

// eviction checks the settings of eviction.
func (p *problems) eviction(c *Configuration) {
	thresholds, err := eviction.ParseThresholds(convertEviction(c))
	if err != nil {
		p.errs = append(p.errs, err)
	}
	named := slices.ContainsFunc(thresholds, func(t eviction.Threshold) bool { return t.Signal == eviction.AllocatableMemoryAvailable })
	p.want(!named || slices.Contains(c.EnforceNodeAllocatable, cm.EnforcePods), "enforceNodeAllocatable", c.EnforceNodeAllocatable,
		"pods among them: a threshold of allocatableMemory.available is about the limit of all Pods")
}
