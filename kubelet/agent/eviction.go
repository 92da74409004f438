package agent

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/eviction"
	"github.com/berth-dev/berth/kubelet/eviction/localstorage"
	"github.com/berth-dev/berth/kubelet/eviction/machine"
	"github.com/berth-dev/berth/kubelet/housekeeping"
	"github.com/berth-dev/berth/kubelet/node"
	"github.com/berth-dev/berth/kubelet/qos"
	"github.com/berth-dev/berth/kubelet/status"
)

// thresholds returns the configured thresholds. Config.complete has checked them.
func thresholds(config *Config) []eviction.Threshold {
	thresholds, _ := eviction.ParseThresholds(config.Eviction)
	return thresholds
}

// evictionComponents evict Pods.
type evictionComponents struct {
	// pressure evicts Pods when the node is short of a resource, limits those that exceed a limit of their own.
	pressure *eviction.Manager
	limits   *localstorage.Watcher
}

func newEviction(base *base, runtime *runtimeComponents, n *nodeComponents, p *podComponents, keeper *housekeeping.Manager,
	server *serverComponents,
) (*evictionComponents, error) {
	config, deps := &base.config, &base.deps
	measure, err := machine.New(machine.Deps{
		Node: n.machine, Runtime: runtime.client, PodsCgroup: n.cgroups.PodsDirs, RootDir: config.RootDir, Clock: deps.Clock,
	})
	if err != nil {
		return nil, err
	}
	all := thresholds(config)
	if slices.Contains(config.Cgroups.Enforcement.Enforce, cm.EnforcePods) {
		all = eviction.WithAllocatable(all)
	}
	e := &evictionComponents{}
	if e.pressure, err = eviction.New(eviction.Deps{
		Machine: measure, Pods: p.workers, Usage: server.stats.Usage, RemoveImages: keeper.RemoveImages, Pressure: base.pressure,
		OnPressure: n.manager.PressureChanged, ObserveStatsAge: base.metrics.pods.ObserveEvictionStatsAge, Ready: p.workers.Ready(),
		Node: node.Reference(config.Node.Name), Recorder: deps.Recorder, Clock: deps.Clock, Logger: base.logger("eviction"),
	}, config.Eviction, all); err != nil {
		return nil, err
	}
	e.limits, err = localstorage.New(localstorage.Deps{
		Pods: p.workers.ActivePods, Measure: server.stats.LocalStorage, Free: measure.Free,
		OnExceeded: func(pod *corev1.Pod, excess localstorage.Excess) { p.evictOverLimit(base, pod, excess) },
		Clock:      deps.Clock, Logger: base.logger("eviction"),
	})
	base.podEvents.Subscribe(func(event status.Event) {
		if !event.Removed {
			e.limits.PodChanged(event.Pod)
		}
	})
	return e, err
}

// evictOverLimit evicts a Pod that exceeds a limit of its own, unless it is critical: a static Pod would not be admitted again. It
// is not the target of a disruption: the fault is its own.
func (p *podComponents) evictOverLimit(base *base, pod *corev1.Pod, excess localstorage.Excess) {
	const grace = 1 // seconds, as in each eviction that cannot wait
	if qos.IsCritical(pod) {
		base.deps.Logger.Warn("cannot evict a critical Pod", "pod", pod.Namespace+"/"+pod.Name, "uid", pod.UID, "reason", excess.Message)
		return
	}
	if pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodFailed {
		base.deps.Recorder.Event(pod, corev1.EventTypeWarning, eviction.Reason, excess.Message)
	}
	p.workers.Evict(pod.UID, status.Failure{
		Reason: eviction.Reason, Message: excess.Message, Detail: excess.Signal, Discard: true,
	}, ptr.To[int64](grace))
}
