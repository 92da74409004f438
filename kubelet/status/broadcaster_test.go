package status

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestBroadcasterSendsToAllSubscribers(t *testing.T) {
	var b Broadcaster
	var got []string
	cancel := b.Subscribe(func(e Event) { got = append(got, "first "+string(e.UID)) })
	b.SubscribeUntil(func(e Event) bool {
		got = append(got, "second "+string(e.UID)+string(e.Status.Phase))
		return e.Removed
	})
	b.Changed(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}}, corev1.PodStatus{Phase: corev1.PodRunning})
	require.Equal(t, []string{"first a", "second aRunning"}, got)
	cancel()
	b.Removed("b")
	b.Removed("c")
	require.Equal(t, []string{"second b"}, got[2:], "both subscriptions have ended")
}
