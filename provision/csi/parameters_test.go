package csi_test

import (
	"context"
	"testing"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/csi"
)

// Classes that were written for older versions of external-provisioner name the file system in one of these ways, and drivers
// of that time read it from the parameters.
func TestDeprecatedFileSystemParameter(t *testing.T) {
	for _, key := range []string{"fstype", "fsType", "FSType"} {
		t.Run(key, func(t *testing.T) {
			f := newFakeDriver()
			p := withDriver(t, f, csi.Config{DefaultFSType: "ext4"})
			pv, _, err := p.ProvisionContext(t.Context(), options(func(o *provision.VolumeOptions) {
				o.Parameters[key] = "xfs"
			}))
			require.NoError(t, err)
			require.Equal(t, "xfs", pv.Spec.CSI.FSType)
			require.Equal(t, "xfs", f.last().GetVolumeCapabilities()[0].GetMount().GetFsType())
			require.Equal(t, map[string]string{key: "xfs"}, f.last().GetParameters())
		})
	}
	p := withDriver(t, newFakeDriver(), csi.Config{})
	_, _, err := p.ProvisionContext(t.Context(), options(func(o *provision.VolumeOptions) {
		o.Parameters["fsType"], o.Parameters["fstype"] = "xfs", "xfs"
	}))
	require.ErrorContains(t, err, "are the same")
}

const secretPrefix = "csi.storage.k8s.io/"

// A secret that the class names for one purpose counts before the default one; the parameters of the first versions of CSI count
// too, and are passed to the driver.
func TestDefaultAndDeprecatedSecrets(t *testing.T) {
	f := newFakeDriver()
	p := withDriver(t, f, csi.Config{}, secret("vault", "blue", "s3cret"), secret("vault", "grow", "gr0w"))
	pv, _, err := p.ProvisionContext(t.Context(), options(func(o *provision.VolumeOptions) {
		o.PVC.Annotations = map[string]string{"team": "blue"}
		o.Parameters = map[string]string{
			"csiProvisionerSecretName": "${pvc.annotations['team']}", "csiProvisionerSecretNamespace": "vault",
			"csiNodeStageSecretName": "stage", "csiNodeStageSecretNamespace": "vault",
			secretPrefix + "node-publish-secret-name": "publish", secretPrefix + "node-publish-secret-namespace": "vault",
			secretPrefix + "secret-name": "${pvc.name}", secretPrefix + "secret-namespace": "${pvc.namespace}",
		}
	}))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"password": "s3cret"}, f.last().GetSecrets())
	require.Equal(t, map[string]string{
		"csiProvisionerSecretName": "${pvc.annotations['team']}", "csiProvisionerSecretNamespace": "vault",
		"csiNodeStageSecretName": "stage", "csiNodeStageSecretNamespace": "vault",
	}, f.last().GetParameters())
	ref := func(namespace, name string) *corev1.SecretReference {
		return &corev1.SecretReference{Namespace: namespace, Name: name}
	}
	require.Equal(t, ref("vault", "stage"), pv.Spec.CSI.NodeStageSecretRef)
	require.Equal(t, ref("vault", "publish"), pv.Spec.CSI.NodePublishSecretRef)
	for _, byDefault := range []*corev1.SecretReference{
		pv.Spec.CSI.ControllerPublishSecretRef, pv.Spec.CSI.ControllerExpandSecretRef, pv.Spec.CSI.NodeExpandSecretRef} {
		require.Equal(t, ref("ns", "claim"), byDefault)
	}
	require.Equal(t, map[string]string{
		"volume.kubernetes.io/provisioner-deletion-secret-name":      "blue",
		"volume.kubernetes.io/provisioner-deletion-secret-namespace": "vault",
		"volume.kubernetes.io/controller-modify-secret-name":         "claim",
		"volume.kubernetes.io/controller-modify-secret-namespace":    "ns",
	}, pv.Annotations)

	_, _, err = p.ProvisionContext(t.Context(), options(func(o *provision.VolumeOptions) {
		o.Parameters = map[string]string{
			"csiNodeStageSecretName": "stage", "csiNodeStageSecretNamespace": "vault",
			secretPrefix + "node-stage-secret-name": "stage", secretPrefix + "node-stage-secret-namespace": "vault",
		}
	}))
	require.ErrorContains(t, err, "are the same")
}

// The class counts for volumes without the annotations of their secret: they were made by hand, or by an old provisioner.
func TestSecretForTheDeletion(t *testing.T) {
	const name, namespace = "volume.kubernetes.io/provisioner-deletion-secret-name", "volume.kubernetes.io/provisioner-deletion-secret-namespace"
	class := func(name string, parameters map[string]string) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driverName, Parameters: parameters}
	}
	for label, test := range map[string]struct {
		class       string
		annotations map[string]string
		want        map[string]string
	}{
		"its own":      {"own", nil, map[string]string{"password": "own"}},
		"the default":  {"default", nil, map[string]string{"password": "default"}},
		"none is said": {"own", map[string]string{name: "", namespace: ""}, nil},
		"said":         {"own", map[string]string{name: "default", namespace: "ns"}, map[string]string{"password": "default"}},
		"no class":     {"", nil, nil},
		"class gone":   {"gone", nil, nil},
		"no parameter": {"plain", nil, nil},
	} {
		t.Run(label, func(t *testing.T) {
			f := newFakeDriver()
			p := withDriver(t, f, csi.Config{}, secret("ns", "own", "own"), secret("ns", "default", "default"),
				class("own", map[string]string{
					secretPrefix + "provisioner-secret-name": "${pvc.name}", secretPrefix + "provisioner-secret-namespace": "${pvc.namespace}"}),
				class("default", map[string]string{secretPrefix + "secret-name": "default", secretPrefix + "secret-namespace": "ns"}),
				class("plain", nil))
			require.NoError(t, p.DeleteContext(t.Context(), &corev1.PersistentVolume{
				ObjectMeta: metav1.ObjectMeta{Name: "pv", Annotations: test.annotations},
				Spec: corev1.PersistentVolumeSpec{StorageClassName: test.class,
					ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "own"},
					PersistentVolumeSource: corev1.PersistentVolumeSource{
						CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "h"}}},
			}))
			require.Equal(t, test.want, f.deleted[0].GetSecrets())
		})
	}
}

// modifier is a driver that keeps the requests to modify volumes.
type modifier struct {
	*fakeDriver
	requests []*csiapi.ControllerModifyVolumeRequest
}

func (m *modifier) ControllerModifyVolume(
	_ context.Context, req *csiapi.ControllerModifyVolumeRequest,
) (*csiapi.ControllerModifyVolumeResponse, error) {
	m.requests = append(m.requests, req)
	return &csiapi.ControllerModifyVolumeResponse{}, nil
}

func TestSecretForTheModification(t *testing.T) {
	f := &modifier{fakeDriver: newFakeDriver()}
	socket := socketPath(t)
	f.serveAs(t, socket, f, nil)
	p := started(t, csi.Deps{Client: cluster(secret("ns", "modify", "modify"), secret("ns", "expand", "expand"))}, csi.Config{Socket: socket})
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "h"}
	modify := func() map[string]string {
		t.Helper()
		require.NoError(t, p.ModifyVolume(t.Context(), options().PVC, pv, map[string]string{"tier": "gold"}))
		return f.requests[len(f.requests)-1].GetSecrets()
	}
	require.Empty(t, modify())
	pv.Spec.CSI.ControllerExpandSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "expand"}
	require.Equal(t, map[string]string{"password": "expand"}, modify())
	pv.Annotations = map[string]string{
		"volume.kubernetes.io/controller-modify-secret-name": "modify", "volume.kubernetes.io/controller-modify-secret-namespace": "ns"}
	require.Equal(t, map[string]string{"password": "modify"}, modify())
}
