package up

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestReadyOfThePastDoesNotCount has the Node of a cluster that was killed or copied: it is ready in the data from before.
func TestReadyOfThePastDoesNotCount(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
	node := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, at time.Time) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: kind, Status: status, LastHeartbeatTime: metav1.NewTime(at)}}}}
	}
	said := func(nodes ...*corev1.Node) (ready bool) {
		fresh := freshReady{since: start}
		for _, node := range nodes {
			ready = fresh.isSaidBy(node)
		}
		return ready
	}
	second := start.Truncate(time.Second)
	old, older := second.Add(-time.Second), second.Add(-time.Hour)
	require.True(t, said(node(corev1.NodeReady, corev1.ConditionTrue, second)))
	require.True(t, said(node(corev1.NodeReady, corev1.ConditionTrue, start.Add(time.Hour))))
	require.False(t, said(node(corev1.NodeReady, corev1.ConditionTrue, old)))
	require.False(t, said(node(corev1.NodeReady, corev1.ConditionTrue, old), node(corev1.NodeReady, corev1.ConditionTrue, old)))
	require.True(t, said(node(corev1.NodeReady, corev1.ConditionTrue, old), node(corev1.NodeReady, corev1.ConditionTrue, older)), "the clock was set back")
	require.False(t, said(node(corev1.NodeReady, corev1.ConditionTrue, old), node(corev1.NodeReady, corev1.ConditionFalse, start)))
	require.False(t, said(node(corev1.NodeReady, corev1.ConditionUnknown, start)))
	require.False(t, said(node(corev1.NodeMemoryPressure, corev1.ConditionTrue, start)))
	require.False(t, said(&corev1.Node{}))
}
