package admission

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/qos"
)

var _ podworker.Preemptor = (*Admitter)(nil)

// Preempt implements podworker.Preemptor. A critical Pod preempts the fewest Guaranteed Pods, then the fewest Burstable and
// BestEffort ones, that leave it the resources that it lacks. It preempts none if all of them together would not suffice.
func (a *Admitter) Preempt(pod *corev1.Pod, others []*corev1.Pod) podworker.Preemption {
	if !qos.IsCritical(pod) {
		return podworker.Preemption{}
	}
	missing := lacking(a.shortages(pod, others))
	if len(missing) == 0 {
		return podworker.Preemption{}
	}
	classes := map[corev1.PodQOSClass][]*corev1.Pod{}
	var all []*corev1.Pod
	for _, other := range others {
		if preemptable(pod, other) {
			class := qos.Class(other)
			classes[class], all = append(classes[class], other), append(all, other)
		}
	}
	if len(missing.without(all)) > 0 {
		return podworker.Preemption{}
	}
	bestEffort, burstable, guaranteed := classes[corev1.PodQOSBestEffort], classes[corev1.PodQOSBurstable], classes[corev1.PodQOSGuaranteed]
	chosen := missing.without(bestEffort).without(burstable).choose(guaranteed)
	chosen = append(chosen, missing.without(bestEffort).without(chosen).choose(burstable)...)
	chosen = append(chosen, missing.without(chosen).choose(bestEffort)...)
	return podworker.Preemption{Victims: chosen, Signal: string(missing[0].name)}
}

// preemptable reports whether a critical Pod may preempt another one: one that is not critical, or that the API server
// has, with a lower priority.
func preemptable(pod, other *corev1.Pod) bool {
	switch {
	case !qos.IsCritical(other):
		return true
	case podutil.IsStatic(other):
		return false // it would be admitted again
	}
	mine, theirs := pod.Spec.Priority, other.Spec.Priority
	return mine != nil && theirs != nil && *mine > *theirs
}

// lack is how much of a resource has to become free.
type lack struct {
	name   corev1.ResourceName
	amount int64
}

type lacks []lack

func lacking(short []shortage) lacks {
	var out lacks
	for _, s := range short {
		out = append(out, lack{s.name, s.missing()})
	}
	return out
}

// request returns how much of a resource the end of a Pod makes free.
func request(pod *corev1.Pod, name corev1.ResourceName) int64 {
	if name == corev1.ResourcePods {
		return 1
	}
	return podRequests(pod)[name]
}

// without returns what is still missing when the Pods have ended.
func (s lacks) without(pods []*corev1.Pod) lacks {
	var out lacks
	for _, one := range s {
		for _, pod := range pods {
			one.amount -= request(pod, one.name)
		}
		if one.amount > 0 {
			out = append(out, one)
		}
	}
	return out
}

// choose returns few of the Pods which together have what is missing: again and again the one that comes closest, and of those that
// come equally close the one with the smallest requests.
func (s lacks) choose(pods []*corev1.Pod) []*corev1.Pod {
	var chosen []*corev1.Pod
	for rest := slices.Clone(pods); len(s) > 0 && len(rest) > 0; {
		best := slices.MinFunc(rest, func(a, b *corev1.Pod) int {
			return cmp.Or(cmp.Compare(s.distance(a), s.distance(b)),
				cmp.Compare(request(a, corev1.ResourceMemory), request(b, corev1.ResourceMemory)),
				cmp.Compare(request(a, corev1.ResourceCPU), request(b, corev1.ResourceCPU)))
		})
		chosen, s = append(chosen, best), s.without([]*corev1.Pod{best})
		rest = slices.DeleteFunc(rest, func(pod *corev1.Pod) bool { return pod == best })
	}
	return chosen
}

// distance returns how far the Pod is from having what is missing: the sum of the squares of the missing parts.
func (s lacks) distance(pod *corev1.Pod) float64 {
	sum := 0.0
	for _, one := range s {
		if left := one.amount - request(pod, one.name); left > 0 {
			part := float64(left) / float64(one.amount)
			sum += part * part
		}
	}
	return sum
}
