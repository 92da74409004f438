package nodeshutdown

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// systemCritical is the priority from which on a Pod is critical.
const systemCritical int32 = 2_000_000_000

// Period is how long Pods of a priority up to that of the next Period have to end.
type Period struct {
	Priority int32
	Grace    time.Duration
}

// TwoPeriods returns the periods of a grace period for all Pods, the last part of which is that of critical ones. It returns none
// for a grace period of zero.
func TwoPeriods(all, critical time.Duration) []Period {
	if all <= 0 {
		return nil
	}
	return []Period{{Priority: 0, Grace: all - critical}, {Priority: systemCritical, Grace: critical}}
}

// group are Pods that end at the same time.
type group struct {
	Period
	pods []*corev1.Pod
}

// groupPods returns the groups of Pods, in the order in which they end. A Pod belongs to the Period with the highest priority that
// is not above its own, or to the first one.
func groupPods(periods []Period, pods []*corev1.Pod) []group {
	sorted := slices.Clone(periods)
	slices.SortStableFunc(sorted, func(a, b Period) int { return cmp.Compare(a.Priority, b.Priority) })
	groups := make([]group, len(sorted))
	for i, period := range sorted {
		groups[i].Period = period
	}
	for _, pod := range pods {
		priority := int32(0)
		if pod.Spec.Priority != nil {
			priority = *pod.Spec.Priority
		}
		at := 0
		for i := range groups {
			if groups[i].Priority <= priority {
				at = i
			}
		}
		groups[at].pods = append(groups[at].pods, pod)
	}
	return slices.DeleteFunc(groups, func(g group) bool { return len(g.pods) == 0 })
}

// total returns the sum of the periods.
func total(periods []Period) time.Duration {
	sum := time.Duration(0)
	for _, period := range periods {
		sum += period.Grace
	}
	return sum
}
