package kuberuntime

import (
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
)

// MinGracePeriod is the least time, in seconds, that a container has between TERM and KILL.
const MinGracePeriod int64 = 2

// maxGracePeriod is the longest grace period, in seconds: half of what a time.Duration can be. The API accepts more, for "never".
const maxGracePeriod = math.MaxInt64 / int64(time.Second) / 2

// Stop is one running container of a Pod that terminates.
type Stop struct {
	Status *container.ContainerStatus
	// Container is its spec; nil if the spec has none of that name (then Status.PreStop applies).
	Container *corev1.Container
	// After are the indexes in the plan of the stops that must finish before this container gets its TERM. Its preStop
	// hook does not wait.
	After []int
}

// TerminationPlan returns how the running containers of a Pod stop, all within one budget of grace seconds. The stops
// run side by side, each starting with its preStop hook; before TERM each waits for those in After, but at most until
// the budget is used up, and then has MinGracePeriod left. Main containers wait for none, a sidecar for all main
// containers and for the sidecars behind it in the spec. Without grace no container waits.
func TerminationPlan(pod *corev1.Pod, running []*container.ContainerStatus, grace int64) []Stop {
	var plan []Stop
	names := map[string][]int{} // container name to the indexes of its stops
	for _, s := range running {
		names[s.Name] = append(names[s.Name], len(plan))
		stop := Stop{Status: s}
		if pod != nil {
			stop.Container, _ = podutil.FindContainer(&pod.Spec, s.Name)
		}
		plan = append(plan, stop)
	}
	if pod == nil || grace <= 0 {
		return plan
	}
	var before []int
	for i := range pod.Spec.Containers {
		before = append(before, names[pod.Spec.Containers[i].Name]...)
	}
	for i := len(pod.Spec.InitContainers) - 1; i >= 0; i-- {
		c := &pod.Spec.InitContainers[i]
		if !podutil.IsSidecar(c, podutil.Init) {
			continue
		}
		for _, at := range names[c.Name] {
			plan[at].After = append([]int(nil), before...)
		}
		before = append(before, names[c.Name]...)
	}
	return plan
}

// PodGracePeriod returns the grace period of a Pod in seconds: the shorter of those of its deletion and of the override
// (an eviction or a forced deletion), or else that of its spec; never less than 1.
func PodGracePeriod(pod *corev1.Pod, override *int64) int64 {
	grace := int64(0)
	consider := func(seconds *int64) {
		if seconds != nil && *seconds > 0 && (grace == 0 || *seconds < grace) {
			grace = *seconds
		}
	}
	given := override != nil || pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil
	if pod.DeletionTimestamp != nil {
		consider(pod.DeletionGracePeriodSeconds)
	}
	consider(override)
	if !given && pod.Spec.TerminationGracePeriodSeconds != nil {
		grace = *pod.Spec.TerminationGracePeriodSeconds
	}
	return min(max(grace, 1), maxGracePeriod)
}

// KillGracePeriod returns the time in seconds that one container has to stop while its Pod keeps running. A failed probe
// may set its own. The time includes the preStop hook; what is left for StopContainer is never less than MinGracePeriod.
func KillGracePeriod(pod *corev1.Pod, kill Kill) int64 {
	return min(killGracePeriod(pod, kill), maxGracePeriod)
}

func killGracePeriod(pod *corev1.Pod, kill Kill) int64 {
	if kill.GracePeriod != nil {
		return max(*kill.GracePeriod, 0)
	}
	if pod.DeletionGracePeriodSeconds != nil {
		return *pod.DeletionGracePeriodSeconds
	}
	if c := kill.Container; c != nil {
		probe := map[KillReason]*corev1.Probe{KillLiveness: c.LivenessProbe, KillStartup: c.StartupProbe}[kill.Reason]
		if probe != nil && probe.TerminationGracePeriodSeconds != nil {
			return *probe.TerminationGracePeriodSeconds
		}
	}
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		return *pod.Spec.TerminationGracePeriodSeconds
	}
	return MinGracePeriod
}
