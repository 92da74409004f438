package attachdetach

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

// A Node is deleted before the controller has read its last report: what that says is in use counts all the same, also if the
// watch has missed the deletion itself.
func TestLastReportOfADeletedNode(t *testing.T) {
	const volume = corev1.UniqueVolumeName("kubernetes.io/csi/disk.example.com^d")
	node := func(inUse ...corev1.UniqueVolumeName) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a-uid", Annotations: map[string]string{managedAnnotation: "true"}},
			Status: corev1.NodeStatus{
				VolumesAttached: []corev1.AttachedVolume{{Name: volume}}, VolumesInUse: inUse,
			},
		}
	}
	for name, test := range map[string]struct{ before, last *corev1.Node }{
		"in use":   {before: node(), last: node(volume)},
		"released": {before: node(volume), last: node()},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(test.before)
			c, err := New(Deps{Client: client}, Config{})
			require.NoError(t, err)
			a, err := c.build(record.NewFakeRecorder(100))
			require.NoError(t, err)
			defer a.queue.ShutDown()
			ctx, cancel := context.WithCancel(t.Context())
			defer a.factory.Shutdown()
			defer cancel()
			a.factory.StartWithContext(ctx)
			require.True(t, toolscache.WaitFor(ctx, "", a.synced...))
			a.populator.rebuild()
			mounted := func() bool {
				attached, ok := a.populator.actual.GetAttachedVolume(volume, types.NodeName("a"))
				require.True(t, ok)
				return attached.MountedByNode
			}
			require.Equal(t, len(test.before.Status.VolumesInUse) > 0, mounted())

			nodes := client.CoreV1().Nodes()
			_, err = nodes.Update(ctx, test.last, metav1.UpdateOptions{})
			require.NoError(t, err)
			require.NoError(t, nodes.Delete(ctx, "a", metav1.DeleteOptions{}))
			wait := func(until func() bool, what string) {
				require.Eventually(t, until, 10*time.Second, time.Millisecond, what)
			}
			wait(func() bool { _, err := a.populator.listers.nodes.Get("a"); return err != nil }, "the cache must follow")
			wait(func() bool {
				if a.queue.Len() > 0 {
					next, _ := a.queue.Get()
					a.populator.process(next)
					a.queue.Done(next)
				}
				return mounted() == (len(test.last.Status.VolumesInUse) > 0)
			}, "what the node said last must count")
		})
	}
	missed := lastReports{}
	missed.note(toolscache.DeletedFinalStateUnknown{Key: "a", Obj: node(volume)})
	inUse, ok := missed.take("a")
	require.True(t, ok)
	require.Equal(t, []corev1.UniqueVolumeName{volume}, inUse)
	_, ok = missed.take("a")
	require.False(t, ok, "it counts once")
}
