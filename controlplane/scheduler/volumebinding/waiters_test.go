package volumebinding

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

func TestWaitersAreNotifiedOfTheirTopicsOnly(t *testing.T) {
	w := newWaiters()
	mine, pod := topic{claimKind, "space/claim"}, topic{podKind, "space/pod"}
	wake, release := w.add([]topic{mine, pod})
	other, releaseOther := w.add([]topic{mine})

	w.changed(topic{claimKind, "space/another"})
	w.changed(topic{podKind, "space/claim"})
	require.Empty(t, wake)

	w.changed(mine)
	w.changed(mine)
	w.changedObject(podKind, cache.DeletedFinalStateUnknown{Key: "space/pod"})
	require.Len(t, wake, 1, "any number of changes since the last receive are one")
	require.Len(t, other, 1)

	<-wake
	release()
	w.changed(mine)
	require.Empty(t, wake, "released")
	releaseOther()
	require.Empty(t, w.byTopic)
}

func TestNodeStatusWakesNoWaiter(t *testing.T) {
	w := newWaiters()
	wake, release := w.add([]topic{{nodeKind, "node"}})
	defer release()
	before, after := testNode(), testNode()
	after.Annotations = map[string]string{"heartbeat": "1"}
	w.changedNode(before, after)
	require.Empty(t, wake)
	metav1.SetMetaDataLabel(&after.ObjectMeta, "zone", "there")
	w.changedNode(before, after)
	require.Len(t, wake, 1)
}

// TestNoChangeIsLost: a waiter that was added before a change is notified, however many are added and removed at the same time.
func TestNoChangeIsLost(t *testing.T) {
	w := newWaiters()
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			own := topic{claimKind, fmt.Sprint("space/", i%8)}
			for range 200 {
				wake, release := w.add([]topic{own, {nodeKind, "node"}})
				w.changed(own)
				<-wake
				release()
			}
		})
	}
	all.Wait()
	require.Empty(t, w.byTopic)
}
