package explain_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/timeline"
)

const driver = "csi driver disk.example"

// mounting records that the kubelet sets up volume v and calls its driver.
func mounting(rec *timeline.Recorder, ref timeline.Ref) (mount, call *timeline.Span) {
	mount = rec.Begin(ref, "kubelet", timeline.StageVolume, "v")
	mount.SetCause(timeline.Ref{Kind: explain.KindClaim, Name: "data", UID: "claim"})
	return mount, mount.Begin(driver, timeline.StageDriver, "NodePublishVolume pv-1")
}

func TestADriverThatDoesNotAnswerIsNamed(t *testing.T) {
	explanation := ask(t, scene{pod: pod(nil), record: func(rec *timeline.Recorder, ref timeline.Ref) { mounting(rec, ref) }})
	require.Equal(t, "DriverCall", explanation.Reason)
	require.Equal(t, driver, explanation.HeldBy)
	require.Contains(t, explanation.Verdict, "volume v: "+driver+" was called for NodePublishVolume of volume pv-1 3.0 s ago")
	var text bytes.Buffer
	require.NoError(t, explain.Print(&text, explanation, 120))
	require.Contains(t, text.String(), "for pvc/data", "the stage's cause")
	require.Contains(t, text.String(), "Remedy: if it does not respond")
}

func TestADriverThatFailsIsNamedWithItsWords(t *testing.T) {
	explanation := ask(t, scene{pod: pod(nil), record: func(rec *timeline.Recorder, ref timeline.Ref) {
		mount, call := mounting(rec, ref)
		err := timeline.WithReason(errors.New("disk is on fire"), "DriverCallFailed", "put it out")
		call.End(err)
		mount.End(err)
	}})
	require.Equal(t, "DriverCallFailed", explanation.Reason)
	require.Equal(t, driver, explanation.HeldBy)
	require.Equal(t, "put it out", explanation.Remedy)
	require.Contains(t, explanation.Verdict, "disk is on fire")
}

func TestAnUnmountThatHangsOrFailsIsNamed(t *testing.T) {
	deleted := pod(func(p *corev1.Pod) {
		p.DeletionTimestamp = &metav1.Time{Time: now.Add(-5 * time.Second)}
		p.Finalizers = nil
	})
	// The fake API refuses objects that are deleted without a finalizer, so the Pod is changed on its way out.
	asked := func(record func(*timeline.Recorder, timeline.Ref)) *explain.Explanation {
		client := fake.NewClientset(pod(nil), node(corev1.ConditionTrue))
		client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, deleted, nil })
		rec := timeline.New(clocktesting.NewFakePassiveClock(now.Add(-3*time.Second)), 0)
		record(rec, timeline.PodRef(deleted))
		explanation, err := explain.Pod(t.Context(), source(client, records{rec}), "default", "web")
		require.NoError(t, err)
		return explanation
	}
	explanation := asked(func(rec *timeline.Recorder, ref timeline.Ref) {
		rec.Begin(ref, "kubelet", timeline.StageUnmount, "").Begin("kubelet", timeline.StageUnmountOne, "v").
			Begin(driver, timeline.StageDriver, "NodeUnpublishVolume pv-1")
	})
	require.Equal(t, "DriverCall", explanation.Reason)
	require.Contains(t, explanation.Verdict, "deleting for 5.0 s: its containers are stopped; "+driver+" was called for NodeUnpublishVolume")
	explanation = asked(func(rec *timeline.Recorder, ref timeline.Ref) {
		all := rec.Begin(ref, "kubelet", timeline.StageUnmount, "")
		all.Begin("kubelet", timeline.StageUnmountOne, "v").End(errors.New("device or resource busy"))
		all.Begin("kubelet", timeline.StageUnmountOne, "v")
	})
	require.Equal(t, "FailedUnmount", explanation.Reason)
	require.Contains(t, explanation.Verdict, "device or resource busy")
}

func TestASlowAPIServerIsTheReasonWhenNothingElseIs(t *testing.T) {
	clock := clocktesting.NewFakeClock(now)
	client := fake.NewClientset(pod(nil), node(corev1.ConditionTrue))
	client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		clock.Step(2 * time.Second)
		return false, nil, nil
	})
	explanation, err := explain.Explain(t.Context(), explain.Source{Client: client, Clock: clock}, explain.KindPod, "default", "web")
	require.NoError(t, err)
	require.Equal(t, "APIServerSlow", explanation.Reason)
	require.Contains(t, explanation.Verdict, "the API server took 2.0 s to respond")
	require.NotEmpty(t, explanation.Remedy)
}
