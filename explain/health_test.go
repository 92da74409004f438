package explain_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/explain"
)

// TestAbnormalVolume has a claim whose volume is degraded, and recovers.
func TestAbnormalVolume(t *testing.T) {
	claim := claimFor(nil)
	claim.Spec.VolumeName, claim.Status.Phase = "v", corev1.ClaimBound
	event := func(name, reason, message string, at int64) *corev1.Event {
		return &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: name}, Reason: reason, Message: message,
			InvolvedObject: corev1.ObjectReference{Kind: explain.KindClaim, Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			LastTimestamp:  metav1.NewTime(time.Unix(at, 0)),
		}
	}
	degraded := event("a", "VolumeConditionAbnormal", "Volume v: PathLost (degraded): slow", 1000)
	client := fake.NewClientset(claim, degraded)
	explanation, err := explain.Explain(t.Context(), source(client, nil), explain.KindClaim, claim.Namespace, claim.Name)
	require.NoError(t, err)
	require.Equal(t, "VolumeAbnormal", explanation.Reason)
	require.Contains(t, explanation.Verdict, "but its driver reports: Volume v: PathLost (degraded): slow")
	require.NotEmpty(t, explanation.Remedy)

	_, err = client.CoreV1().Events(claim.Namespace).Create(t.Context(),
		event("b", "VolumeConditionNormal", "Volume v is normal again", 2000), metav1.CreateOptions{})
	require.NoError(t, err)
	explanation, err = explain.Explain(t.Context(), source(client, nil), explain.KindClaim, claim.Namespace, claim.Name)
	require.NoError(t, err)
	require.Equal(t, "Bound", explanation.Reason)
}
