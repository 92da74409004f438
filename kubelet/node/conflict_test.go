package node_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A second kubelet with the same node name overwrites each status write. The two must not overload the API server, the
// conflict is reported, and once the other kubelet is gone the status is correct again.
func TestTwoOfOneName(t *testing.T) {
	run(t, nil, func(t *testing.T, f *fixture) {
		nodes := f.client.CoreV1().Nodes()
		stream, err := nodes.Watch(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		rival, end := context.WithCancel(t.Context())
		done := make(chan int, 1)
		go func() {
			answers := 0
			defer func() { stream.Stop(); done <- answers }()
			for {
				select {
				case <-rival.Done():
					return
				case event := <-stream.ResultChan():
					node, ok := event.Object.(*corev1.Node)
					if !ok || node.Status.Addresses[0].Address == "10.66.66.66" {
						continue
					}
					time.Sleep(time.Millisecond) // until the writer has the response: the fake has no resource versions
					node = node.DeepCopy()
					node.Status.Addresses[0].Address = "10.66.66.66"
					if _, err := nodes.UpdateStatus(rival, node, metav1.UpdateOptions{}); err == nil {
						answers++
					}
				}
			}
		}()
		f.SetNotReady("test", context.Canceled) // a write of this kubelet starts the conflict
		synctest.Wait()
		f.SetNotReady("test", nil)
		time.Sleep(30 * time.Minute)
		end()
		answers := <-done
		require.Greater(t, answers, 20, "both keep writing")
		require.Less(t, answers, 50, "but with backoff")
		var unchanged []string
		for _, event := range f.events() {
			if strings.Contains(event, "NodeStatusContested") {
				unchanged = append(unchanged, event)
			}
		}
		require.Len(t, unchanged, 1)
		require.Contains(t, unchanged[0], "(addresses)")
		time.Sleep(time.Minute + time.Second)
		require.Equal(t, "10.0.0.1", f.get(t).Status.Addresses[0].Address)

		// A change of this node is written at once, even during a conflict.
		require.NoError(t, f.SetVolumesInUse(t.Context(), []corev1.UniqueVolumeName{"v"}))
	})
}
