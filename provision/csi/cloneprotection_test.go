package csi_test

import (
	"context"
	"strings"
	"testing"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/csi"
)

// claimHooks is a client that calls functions after a claim is read, and before one is patched.
type claimHooks struct {
	kubernetes.Interface
	afterGet    func()
	beforePatch func(patch string)
}

func (h *claimHooks) CoreV1() typedcorev1.CoreV1Interface { return hookedCore{h.Interface.CoreV1(), h} }

type hookedCore struct {
	typedcorev1.CoreV1Interface
	hooks *claimHooks
}

func (c hookedCore) PersistentVolumeClaims(namespace string) typedcorev1.PersistentVolumeClaimInterface {
	return hookedClaims{c.CoreV1Interface.PersistentVolumeClaims(namespace), c.hooks}
}

type hookedClaims struct {
	typedcorev1.PersistentVolumeClaimInterface
	hooks *claimHooks
}

func (c hookedClaims) Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.PersistentVolumeClaim, error) {
	defer c.hooks.afterGet()
	return c.PersistentVolumeClaimInterface.Get(ctx, name, options)
}

func (c hookedClaims) Patch(ctx context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions, parts ...string,
) (*corev1.PersistentVolumeClaim, error) {
	c.hooks.beforePatch(string(data))
	return c.PersistentVolumeClaimInterface.Patch(ctx, name, kind, data, options, parts...)
}

// TestCloneThatBeginsWhileAnotherEndsIsProtected begins a second clone of a claim while the finalizer of the first is removed.
func TestCloneThatBeginsWhileAnotherEndsIsProtected(t *testing.T) {
	socket := socketPath(t)
	f := newFakeDriver()
	f.serve(t, socket)
	api := cluster()
	source := options().PVC
	source.UID, source.Spec.VolumeName, source.Status.Phase = "uid", "pv", corev1.ClaimBound
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	volume.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "handle"}
	volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "claim", UID: "uid"}
	require.NoError(t, api.Tracker().Add(source))
	require.NoError(t, api.Tracker().Add(volume))
	hooks := &claimHooks{Interface: api}
	p := started(t, csi.Deps{Client: hooks}, csi.Config{Socket: socket})
	clone := func(name string) error {
		_, _, err := p.ProvisionContext(t.Context(), options(func(o *provision.VolumeOptions) {
			o.PVName = name
			o.PVC.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "claim"}
		}))
		return err
	}

	second, read := make(chan error, 1), make(chan struct{}, 10)
	hooks.afterGet = func() { read <- struct{}{} }
	begun := false
	hooks.beforePatch = func(patch string) {
		if !begun && strings.Contains(patch, "deleteFromPrimitiveList") {
			begun = true
			<-read
			go func() { second <- clone("pvc-second") }()
			<-read // it has seen the finalizer of the first one
		}
	}
	var finalizers []string
	f.mu.Lock()
	f.create = func(_ context.Context, req *csiapi.CreateVolumeRequest) (*csiapi.Volume, error) {
		claim, err := api.Tracker().Get(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), "ns", "claim")
		if err == nil && req.GetName() == "pvc-second" {
			finalizers = claim.(*corev1.PersistentVolumeClaim).Finalizers
		}
		return &csiapi.Volume{VolumeId: req.GetName(), ContentSource: req.GetVolumeContentSource()}, err
	}
	f.mu.Unlock()
	require.NoError(t, clone("pvc-first"))
	require.NoError(t, <-second)
	require.Equal(t, []string{"provisioner.storage.kubernetes.io/cloning-protection"}, finalizers)
	claim, err := api.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "claim", metav1.GetOptions{})
	require.NoError(t, err)
	require.Empty(t, claim.Finalizers, "the last clone releases the claim")
}

// A driver may make volumes larger than requested. A clone of such a volume requests what its source requested.
func TestCloneOfAVolumeThatWasRoundedUp(t *testing.T) {
	f := newFakeDriver()
	source := options().PVC
	source.Name, source.UID, source.Spec.VolumeName, source.Status.Phase = "source", "uid", "pv", corev1.ClaimBound
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	volume.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "handle"}
	volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "source", UID: "uid"}
	volume.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	p := withDriver(t, f, csi.Config{}, source, volume)
	_, _, err := p.ProvisionContext(t.Context(), options(func(o *provision.VolumeOptions) {
		o.PVC.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "source"}
	}))
	require.NoError(t, err)
	require.Equal(t, "handle", f.last().GetVolumeContentSource().GetVolume().GetVolumeId())
	require.EqualValues(t, 8<<20, f.last().GetCapacityRange().GetRequiredBytes())
}
