package page

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/internal/wakeup"
)

// TestALogIsFollowedAgain has the stream of a running container's log end, as when the kubelet or the API server is started anew.
func TestALogIsFollowedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
				Name: "c", ContainerID: "containerd://1", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			}}},
		})
		h := &hub{source: explain.Source{Client: client, Clock: clock.RealClock{}}}
		tail := newLogTail(h, view{kind: explain.KindPod, namespace: "shop", what: "web"}, wakeup.NewSignal())
		defer tail.wait()
		update := func() (reads int, page *document) {
			page = &document{Blocks: []block{{ID: "log"}}}
			tail.update(t.Context(), page)
			synctest.Wait()
			for _, action := range client.Actions() {
				if action.GetSubresource() == "log" {
					reads++
				}
			}
			return reads, page
		}
		reads, _ := update() // the fake client's log has one line, with which it ends
		require.Equal(t, 1, reads)
		reads, page := update()
		require.Equal(t, 1, reads, "not at once")
		require.Contains(t, html(page), "fake logs")
		require.Equal(t, tailPause, page.again)
		time.Sleep(tailPause)
		reads, page = update()
		require.Equal(t, 2, reads)
		require.Contains(t, html(page), "fake logs", "what was read stays meanwhile")
		_, page = update()
		require.Len(t, tail.tails[0].Lines, 1, "the new stream begins with the last lines again")

		pod, err := client.CoreV1().Pods("shop").Get(t.Context(), "web", metav1.GetOptions{})
		require.NoError(t, err)
		pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
		_, err = client.CoreV1().Pods("shop").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
		require.NoError(t, err)
		time.Sleep(tailPause)
		reads, page = update()
		require.Equal(t, 2, reads, "the log of a container that has ended is complete")
		require.Zero(t, page.again)
	})
}
