package agent

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/node"
)

// TestEventsAreWrittenWhileTheAgentRuns records events before the start, during it, and after the stop.
func TestEventsAreWrittenWhileTheAgentRuns(t *testing.T) {
	client := clientset.NewClientset()
	deps := Deps{Client: client, Clock: clock.RealClock{}}
	require.NoError(t, deps.complete())
	recorder, events := newRecorder(&deps, "n", EventConfig{}, nil)
	record := func(reason string) {
		recorder.Eventf(node.Reference("n"), corev1.EventTypeWarning, reason, "%s happened", reason)
	}
	record("Early")
	stop, err := events.start(t.Context())
	require.NoError(t, err)
	record("Running")
	var list *corev1.EventList
	require.Eventually(t, func() bool {
		list, err = client.CoreV1().Events(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{})
		return err == nil && len(list.Items) > 0
	}, time.Minute, time.Millisecond)
	stop()
	record("Late")
	require.Len(t, list.Items, 1)
	require.Equal(t, "Running happened", list.Items[0].Message)
	require.Equal(t, corev1.EventSource{Component: "kubelet", Host: "n"}, list.Items[0].Source)
}

func TestStandaloneAgentDropsEvents(t *testing.T) {
	deps := Deps{}
	require.NoError(t, deps.complete())
	recorder, events := newRecorder(&deps, "n", EventConfig{}, nil)
	require.NotNil(t, recorder)
	require.Nil(t, events)
}
