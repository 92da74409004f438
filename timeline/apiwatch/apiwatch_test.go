package apiwatch_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/timeline/apiwatch"
)

// await returns the record once it has so many stages, woken by the recorder.
func await(t *testing.T, recorder *timeline.Recorder, changed <-chan struct{}, uid string, ended int) timeline.Record {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	for {
		record, _ := recorder.Record(types.UID(uid))
		done := 0
		for _, stage := range record.Stages {
			if stage.Done() {
				done++
			}
		}
		if done >= ended {
			return record
		}
		select {
		case <-changed:
		case <-deadline.C:
			t.Fatalf("%s: %d stages have ended of %+v", uid, done, record.Stages)
		}
	}
}

func TestAPodsWayIsRecorded(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	recorder := timeline.New(clock, 0)
	changed, stop := recorder.Watch()
	defer stop()
	client := fake.NewClientset()
	pods := watch.NewFake()
	watching := make(chan struct{})
	client.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
		close(watching)
		return true, pods, nil
	})
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &corev1.PodList{}, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- apiwatch.Run(ctx, client, recorder, clock) }()
	<-watching

	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "pod", CreationTimestamp: metav1.NewTime(clock.Now())}}
	pods.Add(pod.DeepCopy())
	await(t, recorder, changed, "pod", 1)
	clock.Step(25 * time.Millisecond)
	pod.Spec.NodeName = "n1"
	pods.Modify(pod.DeepCopy())
	await(t, recorder, changed, "pod", 2)
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	pods.Modify(pod.DeepCopy())
	record := await(t, recorder, changed, "pod", 3)
	var names []string
	for _, stage := range record.Stages {
		names = append(names, stage.Name)
	}
	require.Equal(t, []string{timeline.StageAccepted, timeline.StageScheduled, timeline.StageObserved}, names)
	require.GreaterOrEqual(t, record.Stages[1].End.Sub(record.Stages[1].Start), time.Duration(0))
	require.Equal(t, "scheduler", record.Stages[1].Owner)
	cancel()
	require.NoError(t, <-ended)
}
