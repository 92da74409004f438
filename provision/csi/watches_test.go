package csi_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/csi"
)

var (
	snapshotResource = schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshots"}
	contentResource  = schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshotcontents"}
	snapshotLists    = map[schema.GroupVersionResource]string{snapshotResource: "VolumeSnapshotList", contentResource: "VolumeSnapshotContentList"}
)

// fakeClient is a fake clientset, typed or dynamic.
type fakeClient interface {
	PrependWatchReactor(resource string, reaction clienttesting.WatchReactionFunc)
	Tracker() clienttesting.ObjectTracker
}

// noteWatches sends a value when a watch of the resource has begun. Unlike an API server the fake client does not send what
// changed between a list and its watch, so a test must not change anything in between.
func noteWatches(client fakeClient, resource string, watched chan<- struct{}) {
	client.PrependWatchReactor(resource, func(action clienttesting.Action) (bool, watch.Interface, error) {
		stream, err := client.Tracker().Watch(action.GetResource(), action.GetNamespace())
		if err == nil {
			watched <- struct{}{}
		}
		return true, stream, err
	})
}

// provisionUntilWatched fails to provision, with that text, until the source is watched: the notifier may not run yet.
func provisionUntilWatched(t *testing.T, p *csi.Provisioner, options provision.VolumeOptions, text string, watched <-chan struct{}) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, _, err := p.ProvisionContext(t.Context(), options)
		require.ErrorContains(t, err, text)
		select {
		case <-watched:
			return true
		case <-time.After(20 * time.Millisecond):
			return false
		}
	}, time.Minute, time.Millisecond)
}

// testTimeout and testTick are for what no event of a test says.
const testTimeout, testTick = time.Minute, 5 * time.Millisecond
