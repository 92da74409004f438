package csi_test

import (
	"context"
	"errors"
	"testing"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/csi"
)

// TestProvisionerOfOneNode takes what is scheduled to its node and deletes what is on it.
func TestProvisionerOfOneNode(t *testing.T) {
	f := newFakeDriver()
	p := withDriver(t, f, csi.Config{NodeName: "node-1"})
	claim := options().PVC
	require.False(t, p.ShouldProvision(claim))
	claim.Annotations = map[string]string{"volume.kubernetes.io/selected-node": "node-2"}
	require.False(t, p.ShouldProvision(claim))
	claim.Annotations["volume.kubernetes.io/selected-node"] = "node-1"
	require.True(t, p.ShouldProvision(claim))

	volume := func(zones ...string) *corev1.PersistentVolume {
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "handle"}
		if len(zones) > 0 {
			pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: zone, Operator: corev1.NodeSelectorOpIn, Values: zones}}}}}}
		}
		return pv
	}
	require.False(t, p.ShouldDelete(volume()))
	require.True(t, p.ShouldDelete(volume("b")), "whose node has the label is for DeleteContext to find out")
	var ignored *provision.IgnoredError
	require.True(t, errors.As(p.DeleteContext(t.Context(), volume("b")), &ignored))
	require.True(t, errors.As(p.DeleteContext(t.Context(), volume()), &ignored), "a volume without a node is not of this one")
	require.Empty(t, f.deleted)
	require.NoError(t, p.DeleteContext(t.Context(), volume("a")))
	require.Len(t, f.deleted, 1)
}

// TestClonedClaimIsProtected holds the source of a clone while a call may create it, and releases what an earlier process
// held.
func TestClonedClaimIsProtected(t *testing.T) {
	const finalizer = "provisioner.storage.kubernetes.io/cloning-protection"
	socket := socketPath(t)
	f := newFakeDriver()
	f.serve(t, socket)
	api := cluster()
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	volume.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "handle"}
	volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "claim", UID: "uid"}
	_, err := api.CoreV1().PersistentVolumes().Create(t.Context(), volume, metav1.CreateOptions{})
	require.NoError(t, err)
	source := options().PVC
	source.UID, source.Spec.VolumeName, source.Status.Phase = "uid", "pv", corev1.ClaimBound
	_, err = api.CoreV1().PersistentVolumeClaims("ns").Create(t.Context(), source, metav1.CreateOptions{})
	require.NoError(t, err)
	finalizers := func() []string {
		claim, err := api.CoreV1().PersistentVolumeClaims("ns").Get(context.WithoutCancel(t.Context()), "claim", metav1.GetOptions{})
		require.NoError(t, err)
		return claim.Finalizers
	}
	clone := options(func(o *provision.VolumeOptions) {
		o.PVName = "pvc-clone"
		o.PVC.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "claim"}
	})
	f.mu.Lock()
	f.create = func(context.Context, *csiapi.CreateVolumeRequest) (*csiapi.Volume, error) {
		require.Equal(t, []string{finalizer}, finalizers())
		return nil, context.DeadlineExceeded
	}
	f.mu.Unlock()
	p := started(t, csi.Deps{Client: api}, csi.Config{Socket: socket})
	_, _, err = p.ProvisionContext(t.Context(), clone)
	require.Error(t, err)
	if state := finalizers(); len(state) != 0 { // the fake's error has no code, so the call is over
		require.Equal(t, []string{finalizer}, state)
	}
	f.mu.Lock()
	f.create = nil
	f.mu.Unlock()
	_, _, err = p.ProvisionContext(t.Context(), clone)
	require.NoError(t, err)
	require.Empty(t, finalizers())

	held := source.DeepCopy()
	held.Finalizers = []string{finalizer}
	_, err = api.CoreV1().PersistentVolumeClaims("ns").Update(t.Context(), held, metav1.UpdateOptions{})
	require.NoError(t, err)
	notifyProvisionable(t, started(t, csi.Deps{Client: api}, csi.Config{Socket: socket}))
	require.Eventually(t, func() bool { return len(finalizers()) == 0 }, testTimeout, testTick)
}
