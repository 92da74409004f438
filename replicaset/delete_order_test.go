package replicaset

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// podWith makes a ready, running Pod of an hour's age, then edits it.
func podWith(edits ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		Spec:       corev1.PodSpec{NodeName: "node"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{
			Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour)),
		}}},
	}
	for _, edit := range edits {
		edit(pod)
	}
	return pod
}

func cost(text string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Annotations = map[string]string{corev1.PodDeletionCost: text} }
}

func phase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.Phase = phase }
}

func age(age time.Duration) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.CreationTimestamp = metav1.NewTime(now.Add(-age)) }
}

func readyFor(d time.Duration) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-d)) }
}

func on(node string) func(*corev1.Pod) { return func(pod *corev1.Pod) { pod.Spec.NodeName = node } }

func readySinceUnknown(pod *corev1.Pod) { pod.Status.Conditions[0].LastTransitionTime = metav1.Time{} }

func unready(pod *corev1.Pod) { pod.Status.Conditions = nil }

func restarted(count int32) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: count}} }
}

func sidecarRestarted(count int32) func(*corev1.Pod) {
	always := corev1.ContainerRestartPolicyAlways
	return func(pod *corev1.Pod) {
		pod.Spec.InitContainers = []corev1.Container{{Name: "side", RestartPolicy: &always}, {Name: "init"}}
		pod.Status.InitContainerStatuses = []corev1.ContainerStatus{
			{Name: "init", RestartCount: 99}, {Name: "side", RestartCount: count},
		}
	}
}

// TestRank compares Pods in pairs; the first is to be deleted, whatever their UIDs and order say. Each line differs
// in its own criterion and, the other way, in the next one, so that the order of the criteria is tested too.
func TestRank(t *testing.T) {
	for name, pair := range map[string][2]*corev1.Pod{
		"unassigned before assigned": {podWith(on(""), phase(corev1.PodRunning)), podWith(phase(corev1.PodPending))},
		"pending before unknown":     {podWith(phase(corev1.PodPending)), podWith(phase(corev1.PodUnknown), unready)},
		"unknown before running":     {podWith(phase(corev1.PodUnknown)), podWith(unready)},
		"unready before ready":       {podWith(unready, cost("9")), podWith(cost("1"))},
		"low cost before high":       {podWith(cost("-3"), readyFor(time.Hour)), podWith(readyFor(time.Minute))},
		"bad cost counts as none":    {podWith(cost("+1")), podWith(cost("1"))},
		"ready later first":          {podWith(readyFor(time.Minute)), podWith(restarted(3))},
		"ready since unknown first":  {podWith(readySinceUnknown), podWith(readyFor(0))},
		"more restarts first": {
			podWith(restarted(3), sidecarRestarted(0)), podWith(restarted(2), sidecarRestarted(5)),
		},
		"more sidecar restarts first": {
			podWith(sidecarRestarted(2), age(9*time.Hour)), podWith(sidecarRestarted(1), age(time.Minute)),
		},
		"younger first":                 {podWith(age(time.Minute)), podWith(age(time.Hour))},
		"ages of one magnitude: by uid": {podWith(age(3700 * time.Second)), podWith(age(3600 * time.Second))},
	} {
		t.Run(name, func(t *testing.T) {
			first, second := pair[0], pair[1]
			first.UID, second.UID = "2", "1"
			if name == "ages of one magnitude: by uid" {
				first.UID, second.UID = "1", "2"
			}
			for _, active := range [][]*corev1.Pod{{first, second}, {second, first}} {
				toDelete, rest := choosePodsToDelete(active, nil, 1, now)
				require.Equal(t, []*corev1.Pod{first}, toDelete)
				require.Equal(t, []*corev1.Pod{second}, rest)
			}
		})
	}
}

func TestRankSpreadsOverNodes(t *testing.T) {
	active := []*corev1.Pod{podWith(on("a")), podWith(on("b"), readyFor(time.Minute))}
	related := append([]*corev1.Pod{podWith(on("a")), podWith(on("b"), phase(corev1.PodFailed))}, active...)
	toDelete, _ := choosePodsToDelete(active, related, 1, now)
	require.Equal(t, active[:1], toDelete)
}

func TestChooseAll(t *testing.T) {
	active := []*corev1.Pod{podWith(), podWith()}
	toDelete, rest := choosePodsToDelete(active, nil, 2, now)
	require.Equal(t, active, toDelete)
	require.Empty(t, rest)
}

// TestRankIsAnOrder checks that the comparison is consistent, which slices.SortFunc needs.
func TestRankIsAnOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(edits ...func(*corev1.Pod)) func(*corev1.Pod) { return edits[random.IntN(len(edits))] }
	var all []candidate
	for i := range 60 {
		pod := podWith(pick(on(""), on("a"), on("b")), pick(phase(corev1.PodPending), phase(corev1.PodRunning)),
			pick(cost("1"), cost("x")), pick(readyFor(0), readyFor(time.Minute), unready), pick(restarted(1), restarted(2)))
		pod.UID = types.UID(rune('a' + i))
		all = append(all, newCandidate(pod, random.IntN(2), now))
	}
	for _, a := range all {
		for _, b := range all {
			require.Equal(t, compareCandidates(a, b), -compareCandidates(b, a))
			for _, c := range all {
				if compareCandidates(a, b) < 0 && compareCandidates(b, c) < 0 {
					require.Negative(t, compareCandidates(a, c))
				}
			}
		}
	}
}

func TestAvailability(t *testing.T) {
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		min  time.Duration
		want bool
	}{
		"unready":                {podWith(unready), 0, false},
		"ready":                  {podWith(readyFor(0)), 0, true},
		"just long enough":       {podWith(readyFor(time.Minute)), time.Minute, true},
		"not long enough":        {podWith(readyFor(time.Minute)), time.Minute + 1, false},
		"ready since who knows?": {podWith(readySinceUnknown), 1, false},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, isAvailable(tc.pod, tc.min, now)) })
	}
}
