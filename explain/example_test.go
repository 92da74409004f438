package explain_test

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/explain"
)

// A Pod references a claim that does not exist. A real program takes the client of its cluster, and the records of a
// running berth as Source.Records.
func ExampleExplain() {
	created := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	client := fake.NewClientset(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "1", CreationTimestamp: metav1.NewTime(created)},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "disk"},
		}}}},
	})
	source := explain.Source{Client: client, Clock: clocktesting.NewFakePassiveClock(created.Add(3 * time.Second))}
	explanation, err := explain.Explain(context.Background(), source, explain.KindPod, "shop", "web")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(explanation.State, explanation.Reason)
	fmt.Println(explanation.Verdict)
	fmt.Println(explanation.Next)
	// Output:
	// Waiting ClaimMissing
	// waiting 3.0 s: claim disk (volume data) does not exist
	// berth kubectl -n shop get pvc
}
