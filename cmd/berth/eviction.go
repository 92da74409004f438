package main

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/berth-dev/berth/kubelet/eviction"
	"github.com/berth-dev/berth/kubelet/settings"
)

// evictionFlags say when Pods are evicted because the node is short of a resource. They are named as the kubelet's flags.
type evictionFlags struct {
	hard, soft, softGrace, reclaim map[string]string
	transition                     time.Duration
	maxPodGrace                    int32
}

func (e *evictionFlags) add(f *pflag.FlagSet, defaults string) {
	f.Var(cliflag.NewLangleSeparatedMapStringString(&e.hard), "eviction-hard", "evict Pods when less of a resource is available: memory.available<100Mi,nodefs.available<10%\n"+
		"(also allocatableMemory.available, nodefs.inodesFree, imagefs.available, imagefs.inodesFree,\npid.available; 0% for no threshold; default: "+defaults+")")
	f.Var(cliflag.NewLangleSeparatedMapStringString(&e.soft), "eviction-soft", "thresholds as those of --eviction-hard that evict Pods after a grace period")
	f.Var(cliflag.NewMapStringString(&e.softGrace), "eviction-soft-grace-period", "the grace period of each soft threshold: memory.available=1m30s")
	f.Var(cliflag.NewMapStringString(&e.reclaim), "eviction-minimum-reclaim", "how much more than its threshold of a resource has to be available before evictions end:\nnodefs.available=500Mi")
	f.Int32Var(&e.maxPodGrace, "eviction-max-pod-grace-period", 0, "the longest grace period, in seconds, of a Pod that a soft threshold evicts")
	f.DurationVar(&e.transition, "eviction-pressure-transition-period", eviction.DefaultPressureTransitionPeriod,
		"how long a pressure condition of the Node outlasts its cause")
}

// config returns what the flags say. Thresholds that are not named by --eviction-hard have the defaults of the command.
func (e *evictionFlags) config() (eviction.Config, error) {
	config := eviction.Config{
		Hard: e.hard, Soft: e.soft, SoftGracePeriod: e.softGrace, MinimumReclaim: e.reclaim,
		PressureTransitionPeriod: e.transition, MaxPodGracePeriod: int64(e.maxPodGrace),
	}
	if e.transition <= 0 {
		return config, usageError{fmt.Errorf("--eviction-pressure-transition-period %s: want more than 0", e.transition)}
	}
	if e.maxPodGrace < 0 {
		return config, usageError{fmt.Errorf("--eviction-max-pod-grace-period %d: want seconds, 0 or more", e.maxPodGrace)}
	}
	if _, err := eviction.ParseThresholds(config); err != nil {
		return config, usageError{err}
	}
	return config, nil
}

// set copies the flags into the configuration.
func (e *evictionFlags) set(c *settings.Configuration) error {
	config, err := e.config()
	if err != nil {
		return err
	}
	config = config.WithDefaults()
	c.EvictionHard, c.EvictionSoft, c.EvictionSoftGracePeriod, c.EvictionMinimumReclaim = config.Hard, config.Soft, config.SoftGracePeriod, config.MinimumReclaim
	c.EvictionMaxPodGracePeriod, c.EvictionPressureTransitionPeriod = e.maxPodGrace, metav1.Duration{Duration: config.PressureTransitionPeriod}
	return nil
}
