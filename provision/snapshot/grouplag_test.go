package snapshot_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-dev/berth/provision/snapshot/api"
)

// laggingClient is a client whose watches of VolumeSnapshots deliver nothing until shown is closed. listed receives a value when the
// VolumeSnapshots of a namespace are listed, unless it is full.
type laggingClient struct {
	*cluster
	shown, listed chan struct{}
}

type laggingSnapshots struct {
	api.SnapshotsClient
	client    *laggingClient
	namespace string
}

func (c *laggingClient) VolumeSnapshots(namespace string) api.SnapshotsClient {
	return laggingSnapshots{c.cluster.VolumeSnapshots(namespace), c, namespace}
}

func (s laggingSnapshots) List(ctx context.Context, options metav1.ListOptions) (*api.VolumeSnapshotList, error) {
	if s.namespace != "" {
		select {
		case s.client.listed <- struct{}{}:
		default:
		}
	}
	return s.SnapshotsClient.List(ctx, options)
}

func (s laggingSnapshots) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	events, err := s.SnapshotsClient.Watch(ctx, options)
	if err != nil {
		return nil, err
	}
	return watch.Filter(events, func(event watch.Event) (watch.Event, bool) {
		select {
		case <-s.client.shown:
		case <-ctx.Done():
		}
		return event, true
	}), nil
}

// TestGroupIsNotGoneBeforeItsMembers deletes a group whose members the binder's cache does not show yet.
func TestGroupIsNotGoneBeforeItsMembers(t *testing.T) {
	c := start(t, labelled("data", corev1.ClaimBound), volume("data"))
	client := &laggingClient{cluster: c, shown: make(chan struct{}), listed: make(chan struct{}, 1)}
	c.startGroups(t, api.Delete, client)
	c.group(t, ofDB)
	c.waitGroup(t, isGroupReady)
	isGone := func() bool {
		_, err := c.VolumeGroupSnapshots("ns").Get(t.Context(), "g", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}
	require.NoError(t, c.VolumeGroupSnapshots("ns").Delete(t.Context(), "g", metav1.DeleteOptions{}))
	require.Eventually(t, func() bool { return len(client.listed) > 0 || isGone() }, time.Minute, 5*time.Millisecond)
	require.False(t, isGone(), "nothing would release its members")
	close(client.shown)
	require.Eventually(t, isGone, time.Minute, 5*time.Millisecond)
	left, err := c.VolumeSnapshots("ns").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, left.Items)
}
