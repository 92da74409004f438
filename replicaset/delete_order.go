package replicaset

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/podutil"
)

// relatedPods returns the Pods of all ReplicaSets that have the same controller, such as the old and the new one of a
// Deployment; they are to be spread over the nodes together. Without a controller these are its own Pods.
func (r *reconciliation) relatedPods() ([]*corev1.Pod, error) {
	uids := []types.UID{r.rs.UID}
	if ref := metav1.GetControllerOfNoCopy(r.rs); ref != nil {
		siblings, err := r.sets.ByIndex(byController, string(ref.UID))
		if err != nil {
			return nil, err
		}
		for _, obj := range siblings {
			if sibling, ok := obj.(metav1.Object); ok && sibling.GetUID() != r.rs.UID {
				uids = append(uids, sibling.GetUID())
			}
		}
	}
	var related []*corev1.Pod
	for _, uid := range uids {
		pods, err := r.podsOf(uid)
		if err != nil {
			return nil, err
		}
		related = append(related, pods...)
	}
	return related, nil
}

// candidate is a Pod with the values that its place in the order of deletion depends on.
type candidate struct {
	pod        *corev1.Pod
	unassigned bool
	phase      int
	ready      bool
	cost       int32
	podsOnNode int // active Pods of the same group on its node
	readyAge   int // log2 of the seconds since it became ready, -1 if that is unknown
	restarts   candidateRestarts
	age        int // log2 of the seconds since its creation, -1 if that is unknown
}

// candidateRestarts are the highest restart counts among a Pod's containers: all, and sidecars alone.
type candidateRestarts struct{ regular, sidecar int32 }

// choosePodsToDelete picks count of the active Pods to delete and returns them and the rest. A Pod goes before another if
// it is the first to differ in the better way in this order: not assigned to a node; earlier phase; not ready; lower
// deletion cost; more Pods of the group on its node; ready for a shorter time; more restarts; younger. Times count by
// the power of two that they fall into, so that it does not always hit the newest; the UID then decides.
func choosePodsToDelete(active, related []*corev1.Pod, count int, now time.Time) (toDelete, rest []*corev1.Pod) {
	if count >= len(active) {
		return active, nil
	}
	perNode := make(map[string]int)
	for _, pod := range related {
		if !podutil.IsTerminal(&pod.Status) && pod.DeletionTimestamp == nil {
			perNode[pod.Spec.NodeName]++
		}
	}
	candidates := make([]candidate, len(active))
	for i, pod := range active {
		candidates[i] = newCandidate(pod, perNode[pod.Spec.NodeName], now)
	}
	slices.SortFunc(candidates, compareCandidates)
	for i, c := range candidates {
		if i < count {
			toDelete = append(toDelete, c.pod)
		} else {
			rest = append(rest, c.pod)
		}
	}
	return toDelete, rest
}

func newCandidate(pod *corev1.Pod, podsOnNode int, now time.Time) candidate {
	since, ready := readySince(pod)
	c := candidate{
		pod: pod, unassigned: pod.Spec.NodeName == "", ready: ready, cost: deletionCost(pod),
		podsOnNode: podsOnNode, readyAge: -1, age: log2Seconds(pod.CreationTimestamp.Time, now),
	}
	switch pod.Status.Phase {
	case corev1.PodUnknown:
		c.phase = 1
	case corev1.PodRunning:
		c.phase = 2
	}
	if ready {
		c.readyAge = log2Seconds(since, now)
	}
	for _, status := range pod.Status.ContainerStatuses {
		c.restarts.regular = max(c.restarts.regular, status.RestartCount)
	}
	for _, status := range pod.Status.InitContainerStatuses {
		if podutil.HasSidecar(&pod.Spec, status.Name) {
			c.restarts.sidecar = max(c.restarts.sidecar, status.RestartCount)
		}
	}
	return c
}

func compareCandidates(a, b candidate) int {
	return cmp.Or(
		trueFirst(a.unassigned, b.unassigned),
		cmp.Compare(a.phase, b.phase),
		trueFirst(!a.ready, !b.ready),
		cmp.Compare(a.cost, b.cost),
		cmp.Compare(b.podsOnNode, a.podsOnNode),
		cmp.Compare(a.readyAge, b.readyAge),
		cmp.Compare(b.restarts.regular, a.restarts.regular),
		cmp.Compare(b.restarts.sidecar, a.restarts.sidecar),
		cmp.Compare(a.age, b.age),
		cmp.Compare(a.pod.UID, b.pod.UID),
	)
}

// trueFirst orders true before false.
func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// log2Seconds is the power of two that the seconds since then fall into, -1 if then is unknown.
func log2Seconds(then, now time.Time) int {
	if then.IsZero() {
		return -1
	}
	seconds := now.Sub(then).Seconds()
	if seconds < 1 {
		return 0
	}
	return int(math.Log2(seconds))
}

// deletionCost reads the annotation controller.kubernetes.io/pod-deletion-cost; what is no number counts as none.
func deletionCost(pod *corev1.Pod) int32 {
	text, ok := pod.Annotations[corev1.PodDeletionCost]
	if !ok {
		return 0
	}
	cost, err := strconv.ParseInt(text, 10, 32)
	if err != nil || strconv.FormatInt(cost, 10) != text {
		return 0
	}
	return int32(cost)
}
