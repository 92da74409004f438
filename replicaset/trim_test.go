package replicaset

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTrimmedPodsAreRankedAsBefore: what is dropped is nothing that the order of deletion depends on.
func TestTrimmedPodsAreRankedAsBefore(t *testing.T) {
	edits := map[string][]func(*corev1.Pod){
		"plain": nil, "cost": {cost("7")}, "phase": {phase(corev1.PodPending)}, "not ready": {unready}, "restarts": {restarted(3)},
		"sidecar": {sidecarRestarted(4)}, "node": {on("")}, "age": {age(1)},
	}
	for name, of := range edits {
		t.Run(name, func(t *testing.T) {
			pod := podWith(of...)
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "note", "long")
			pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
			pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "image"}}
			pod.Labels = map[string]string{"app": "x"}
			trimmed, err := trim(pod.DeepCopy())
			require.NoError(t, err)
			got, want := newCandidate(trimmed.(*corev1.Pod), 1, now), newCandidate(pod, 1, now)
			got.pod, want.pod = nil, nil
			require.Equal(t, want, got)
			kept := trimmed.(*corev1.Pod)
			require.Equal(t, pod.Labels, kept.Labels)
			require.NotContains(t, kept.Annotations, "note")
			require.Empty(t, kept.ManagedFields)
			require.Empty(t, kept.Spec.Containers)
		})
	}
}
