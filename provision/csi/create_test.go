package csi_test

import (
	"context"
	"errors"
	"testing"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/csi"
)

func TestStateOfEachCode(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		want, wantImmediate := provision.ProvisioningFinished, provision.ProvisioningFinished
		switch code {
		case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted, codes.AlreadyExists:
			want, wantImmediate = provision.ProvisioningInBackground, provision.ProvisioningInBackground
		case codes.ResourceExhausted:
			want, wantImmediate = provision.ProvisioningReschedule, provision.ProvisioningFinished
		case codes.PermissionDenied, codes.Unauthenticated:
			want, wantImmediate = provision.ProvisioningNoChange, provision.ProvisioningNoChange
		}
		t.Run(code.String(), func(t *testing.T) {
			f := newFakeDriver()
			f.failWith(code)
			p := withDriver(t, f, csi.Config{})
			_, state, err := p.ProvisionContext(t.Context(), options())
			require.Equal(t, code, status.Code(err))
			require.Equal(t, want, state)
			var infeasible *provision.InfeasibleError
			require.Equal(t, code == codes.InvalidArgument, errors.As(err, &infeasible))
			_, state, err = p.ProvisionContext(t.Context(), options(func(o *provision.VolumeOptions) {
				o.SelectedNode, o.PVName = nil, "pvc-2"
			}))
			require.Equal(t, code, status.Code(err))
			require.Equal(t, wantImmediate, state)
		})
	}
}

func TestUnfinishedCallIsRepeatedWithTheSameRequest(t *testing.T) {
	f := newFakeDriver()
	ctx, lose := context.WithCancel(t.Context())
	hung := make(chan struct{})
	f.create = func(ctx context.Context, _ *csiapi.CreateVolumeRequest) (*csiapi.Volume, error) {
		lose()
		<-ctx.Done()
		close(hung)
		return nil, errors.New("killed")
	}
	p := withDriver(t, f, csi.Config{}, secret("ns", "s", "old"))
	first := options(func(o *provision.VolumeOptions) {
		o.Parameters = map[string]string{
			"kind": "fast", "csi.storage.k8s.io/provisioner-secret-name": "s",
			"csi.storage.k8s.io/provisioner-secret-namespace": "ns",
		}
	})
	_, state, err := p.ProvisionContext(ctx, first)
	require.Equal(t, codes.Canceled, status.Code(err))
	require.Equal(t, provision.ProvisioningInBackground, state)
	<-hung
	words := f.last()

	// The node is gone and the class is another by now: neither matters.
	f.failWith(codes.OK)
	pv, state, err := p.ProvisionContext(t.Context(), options(func(o *provision.VolumeOptions) {
		o.SelectedNode = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gone"}}
		o.Parameters = map[string]string{"kind": "slow"}
	}))
	require.NoError(t, err)
	require.Equal(t, provision.ProvisioningFinished, state)
	require.Equal(t, "id-of-pvc-1", pv.Spec.CSI.VolumeHandle)
	require.Empty(t, cmp.Diff(words, f.last(), protocmp.Transform()))

	// It is answered, so the next is a new volume with new words.
	_, _, err = p.ProvisionContext(t.Context(), options())
	require.NoError(t, err)
	require.Empty(t, f.last().GetParameters())
}

func TestUnwantedVolumesAreDeleted(t *testing.T) {
	for name, test := range map[string]struct {
		answer    *csiapi.Volume
		removeErr error
		state     provision.ProvisioningState
		deleted   int
	}{
		"no id":     {&csiapi.Volume{CapacityBytes: 8 << 20}, nil, provision.ProvisioningInBackground, 0},
		"too small": {&csiapi.Volume{VolumeId: "x", CapacityBytes: 1}, nil, provision.ProvisioningFinished, 1},
		"empty":     {&csiapi.Volume{VolumeId: "x"}, nil, provision.ProvisioningFinished, 1},
		"cannot be deleted": {&csiapi.Volume{VolumeId: "x", CapacityBytes: 1}, status.Error(codes.Internal, "no"),
			provision.ProvisioningInBackground, 1},
		"nothing": {nil, nil, provision.ProvisioningInBackground, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeDriver()
			f.create = func(context.Context, *csiapi.CreateVolumeRequest) (*csiapi.Volume, error) { return test.answer, nil }
			f.remove = func(*csiapi.DeleteVolumeRequest) error { return test.removeErr }
			source := &corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "source", UID: "u"},
				Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv"},
				Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
			}
			p := withDriver(t, f, csi.Config{}, source, &corev1.PersistentVolume{
				ObjectMeta: metav1.ObjectMeta{Name: "pv"},
				Spec: corev1.PersistentVolumeSpec{
					ClaimRef: &corev1.ObjectReference{UID: "u"},
					PersistentVolumeSource: corev1.PersistentVolumeSource{
						CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "h"}},
				},
			})
			_, state, err := p.ProvisionContext(t.Context(), options(func(o *provision.VolumeOptions) {
				o.PVC.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "source"}
			}))
			require.Error(t, err)
			require.Equal(t, test.state, state)
			require.Equal(t, "h", f.last().GetVolumeContentSource().GetVolume().GetVolumeId())
			require.Len(t, f.deleted, test.deleted)
		})
	}
}

func TestDelete(t *testing.T) {
	volume := func(change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "h"}}}}
		change(pv)
		return pv
	}
	f := newFakeDriver()
	p := withDriver(t, f, csi.Config{}, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: storagev1.VolumeAttachmentSpec{Attacher: driverName, NodeName: "node-1",
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("attached")}},
	})
	var ignored *provision.IgnoredError
	require.ErrorAs(t, p.DeleteContext(t.Context(), volume(func(pv *corev1.PersistentVolume) {
		pv.Spec.CSI.Driver = "x"
	})), &ignored)
	require.ErrorContains(t, p.DeleteContext(t.Context(), volume(func(pv *corev1.PersistentVolume) {
		pv.Name = "attached"
	})), `node "node-1"`)
	require.Empty(t, f.deleted)
	f.remove = func(*csiapi.DeleteVolumeRequest) error { return status.Error(codes.FailedPrecondition, "in use") }
	require.ErrorContains(t, p.DeleteContext(t.Context(), volume(func(*corev1.PersistentVolume) {})), "in use")
	f.remove = nil
	require.NoError(t, p.DeleteContext(t.Context(), volume(func(*corev1.PersistentVolume) {})))
}

// A secret may have gone before the volume, with the claim's namespace for instance. The driver says whether it can do
// without; a secret that cannot be read now is another matter.
func TestDeleteWithoutItsSecret(t *testing.T) {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv", Annotations: map[string]string{
			"volume.kubernetes.io/provisioner-deletion-secret-name":      "gone",
			"volume.kubernetes.io/provisioner-deletion-secret-namespace": "ns",
		}},
		Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "h"}}},
	}
	f, client := newFakeDriver(), cluster()
	socket := socketPath(t)
	f.serve(t, socket)
	p := started(t, csi.Deps{Client: client}, csi.Config{Socket: socket})
	f.remove = func(*csiapi.DeleteVolumeRequest) error { return status.Error(codes.Unauthenticated, "who are you?") }
	require.ErrorContains(t, p.DeleteContext(t.Context(), pv), "who are you?")
	require.Len(t, f.deleted, 1)
	require.Empty(t, f.deleted[0].GetSecrets())
	f.remove = nil
	require.NoError(t, p.DeleteContext(t.Context(), pv))

	client.PrependReactor("get", "secrets", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("secrets"), "gone", errors.New("no right"))
	})
	require.ErrorContains(t, p.DeleteContext(t.Context(), pv), `"ns/gone"`)
	require.Len(t, f.deleted, 2, "the driver was not asked")
}
