package csi_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"

	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/csi"
)

// observe runs a notifier of the provisioner until the test ends.
func observe(t *testing.T, notifier func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- notifier(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
}

// TestDriverThatIsBackIsNoticed starts a driver, and starts it again, without any call in between.
func TestDriverThatIsBackIsNoticed(t *testing.T) {
	socket := socketPath(t)
	p, err := csi.New(csi.Deps{Client: cluster()}, csi.Config{Name: driverName, Socket: socket})
	require.NoError(t, err)
	available := make(chan struct{}, 100)
	observe(t, func(ctx context.Context) error { return p.NotifyAvailable(ctx, func() { available <- struct{}{} }) })
	observe(t, p.Start)
	for range 3 {
		stop := newFakeDriver().serve(t, socket)
		<-available
		stop()
	}
	starting := newFakeDriver()
	starting.unready = true
	starting.serve(t, socket)
	starting.waitProbed()
	require.Empty(t, available, "it is not ready")
	starting.mu.Lock()
	starting.unready = false
	starting.mu.Unlock()
	<-available
}

// notifyProvisionable returns what the provisioner notifies of. It returns when notifications work.
func notifyProvisionable(t *testing.T, p *csi.Provisioner) <-chan types.UID {
	t.Helper()
	ready := make(chan types.UID, 10)
	observe(t, func(ctx context.Context) error {
		return p.NotifyProvisionable(ctx, func(claim types.UID) { ready <- claim })
	})
	return ready
}

// TestRestoreFollowsItsSnapshot notifies of a claim when the snapshot is there and ready.
func TestRestoreFollowsItsSnapshot(t *testing.T) {
	socket := socketPath(t)
	newFakeDriver().serve(t, socket)
	objects := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), snapshotLists)
	p := started(t, csi.Deps{Client: cluster(), Dynamic: objects}, csi.Config{Socket: socket})
	ready := notifyProvisionable(t, p)
	claim := options(fromSnapshot, func(o *provision.VolumeOptions) { o.PVC.UID = "restored" })
	watched := make(chan struct{}, 10)
	noteWatches(objects, "volumesnapshots", watched)
	provisionUntilWatched(t, p, claim, "spec.dataSource", watched)

	both := snapshotObjects("handle", driverName, false, func(_, _ map[string]any) {})
	_, err := objects.Resource(snapshotResource).Namespace("ns").Create(t.Context(), both[0].(*unstructured.Unstructured), metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = objects.Resource(contentResource).Create(t.Context(), both[1].(*unstructured.Unstructured), metav1.CreateOptions{})
	require.NoError(t, err)
	_, _, err = p.ProvisionContext(t.Context(), claim)
	require.ErrorContains(t, err, "is not ready")
	require.Empty(t, ready)
	both = snapshotObjects("handle", driverName, true, func(_, _ map[string]any) {})
	_, err = objects.Resource(snapshotResource).Namespace("ns").Update(t.Context(), both[0].(*unstructured.Unstructured), metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, types.UID("restored"), <-ready)
	_, _, err = p.ProvisionContext(t.Context(), claim)
	require.NoError(t, err)
}

// TestCloneFollowsItsSource notifies of a claim when the claim that it clones is bound.
func TestCloneFollowsItsSource(t *testing.T) {
	socket := socketPath(t)
	newFakeDriver().serve(t, socket)
	api := cluster()
	p := started(t, csi.Deps{Client: api}, csi.Config{Socket: socket})
	ready := notifyProvisionable(t, p)
	source := options().PVC
	source.Status.Phase = corev1.ClaimPending
	_, err := api.CoreV1().PersistentVolumeClaims("ns").Create(t.Context(), source, metav1.CreateOptions{})
	require.NoError(t, err)
	watched := make(chan struct{}, 10)
	noteWatches(api, "persistentvolumeclaims", watched)
	provisionUntilWatched(t, p, options(func(o *provision.VolumeOptions) {
		o.PVName, o.PVC.UID = "pvc-clone", "clone"
		o.PVC.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "claim"}
	}), "spec.dataSource", watched)
	source.Status.Phase, source.Spec.VolumeName = corev1.ClaimBound, "pv"
	_, err = api.CoreV1().PersistentVolumeClaims("ns").Update(t.Context(), source, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, types.UID("clone"), <-ready)
}
