package csisidecar_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/testlog"
	"github.com/berth-dev/berth/internal/testwatch"
	"github.com/berth-dev/berth/provision"
	csiprovision "github.com/berth-dev/berth/provision/csi"
	"github.com/berth-dev/berth/up/csisidecar"
)

// parts are all controllers of one driver on an API server in memory. Their clock stands still, so that no backoff ends.
type parts struct {
	t      *testing.T
	client *fake.Clientset
	events *record.FakeRecorder
	seen   []string // of events
}

func startParts(t *testing.T, driver *leastDriver, objects ...runtime.Object) *parts {
	t.Helper()
	p := &parts{t: t, client: fake.NewClientset(objects...), events: record.NewFakeRecorder(5000)}
	p.client.PrependWatchReactor("*", testwatch.Copies(p.client.Tracker())) // informers change what they get
	clock := testclock.NewFakeClock(time.Now())
	sidecar, err := csisidecar.New(csisidecar.Deps{
		Client: p.client, Dynamic: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), Clock: clock, Recorder: p.events,
		Logger: testlog.New(t, slog.DiscardHandler),
	}, csisidecar.Config{
		Driver:    csiprovision.Config{Name: driverName, Socket: driver.socket, Timeout: 3 * time.Second},
		Provision: true, Attach: true, Capacity: true, Resize: true,
		ProvisionOptions: []provision.Option{provision.Clock(clock), provision.EventRecorder(p.events)},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- sidecar.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return p
}

// waitEvent waits for an event that contains the text.
func (p *parts) waitEvent(text string) {
	p.t.Helper()
	contains := func(event string) bool { return strings.Contains(event, text) }
	for timeout := time.After(time.Minute); !slices.ContainsFunc(p.seen, contains); {
		select {
		case event := <-p.events.Events:
			p.seen = append(p.seen, event)
		case <-timeout:
			p.t.Fatalf("no event with %q among %q", text, p.seen)
		}
	}
}

func (p *parts) eventually(check func() bool, what string) {
	p.t.Helper()
	require.Eventually(p.t, check, time.Minute, 5*time.Millisecond, what)
}

func (p *parts) isAttached() bool {
	va, err := p.client.StorageV1().VolumeAttachments().Get(p.t.Context(), "va", metav1.GetOptions{})
	require.NoError(p.t, err)
	return va.Status.Attached
}

func (p *parts) hasVolume() bool {
	_, err := p.client.CoreV1().PersistentVolumes().Get(p.t.Context(), "pvc-new-uid", metav1.GetOptions{})
	return err == nil
}

// workForAllParts has a claim to provision, a volume to delete, one to attach and one to expand.
func workForAllParts() []runtime.Object {
	size := func(text string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(text)}
	}
	claim := func(name string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid"), Annotations: map[string]string{
				"volume.kubernetes.io/storage-provisioner": driverName}},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: ptr.To("class"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: size("2Mi")}},
		}
	}
	volume := func(name string, of *corev1.PersistentVolumeClaim, phase corev1.PersistentVolumePhase) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": driverName}},
			Spec: corev1.PersistentVolumeSpec{
				StorageClassName: "class", PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete, Capacity: size("1Mi"),
				AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				ClaimRef:               &corev1.ObjectReference{Namespace: "ns", Name: of.Name, UID: of.UID},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: name}}},
			Status: corev1.PersistentVolumeStatus{Phase: phase},
		}
	}
	larger := claim("larger")
	larger.Spec.VolumeName, larger.Status.Phase, larger.Status.Capacity = "in-use", corev1.ClaimBound, size("1Mi")
	attachment := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va", UID: "va-uid"}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: driverName, NodeName: "node", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("in-use")}}}
	return []runtime.Object{
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "class"}, Provisioner: driverName,
			AllowVolumeExpansion: ptr.To(true), VolumeBindingMode: ptr.To(storagev1.VolumeBindingImmediate)},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}},
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node"}, Spec: storagev1.CSINodeSpec{
			Drivers: []storagev1.CSINodeDriver{{Name: driverName, NodeID: "node-id"}}}},
		claim("new"), larger, volume("in-use", larger, corev1.VolumeBound), volume("released", claim("gone"), corev1.VolumeReleased), attachment,
	}
}

// TestLeastDriver gives all parts work for a driver that has only what the specification demands: they call nothing that it
// has not, report what it cannot do, and attach at once.
func TestLeastDriver(t *testing.T) {
	for name, driver := range map[string]*leastDriver{
		"no controller service": newLeastDriver(t),
		"no capabilities":       newLeastDriver(t, []csi.ControllerServiceCapability_RPC_Type{}...),
		"unknown capability":    newLeastDriver(t, 999),
	} {
		t.Run(name, func(t *testing.T) {
			driver.serve(t)
			p := startParts(t, driver, workForAllParts()...)
			p.eventually(p.isAttached, "it is attached although the driver does not publish volumes")
			for _, text := range []string{
				"does not support creating volumes", "does not support deleting volumes", "does not support volume expansion",
			} {
				p.waitEvent(text)
			}
			capacities, err := p.client.StorageV1().CSIStorageCapacities("").List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			require.Empty(t, capacities.Items)
			require.Empty(t, driver.called(), "calls that the driver does not have")
		})
	}
}

// TestDriverThatIsBack fails while the driver is away, and succeeds when it is there, before any backoff ends.
func TestDriverThatIsBack(t *testing.T) {
	driver := newLeastDriver(t, csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME, csi.ControllerServiceCapability_RPC_GET_CAPACITY)
	driver.responses["CreateVolume"] = func(any) (any, error) {
		return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "new"}}, nil
	}
	driver.responses["DeleteVolume"] = func(any) (any, error) { return &csi.DeleteVolumeResponse{}, nil }
	driver.responses["ControllerExpandVolume"] = func(any) (any, error) {
		return &csi.ControllerExpandVolumeResponse{CapacityBytes: 2 << 20}, nil
	}
	driver.responses["ControllerPublishVolume"] = func(any) (any, error) { return &csi.ControllerPublishVolumeResponse{}, nil }
	driver.responses["GetCapacity"] = func(any) (any, error) { return &csi.GetCapacityResponse{AvailableCapacity: 1 << 30}, nil }
	p := startParts(t, driver, workForAllParts()...)
	p.waitEvent("VolumeResizeFailed")
	p.waitEvent("ProvisioningFailed")
	p.eventually(func() bool {
		va, err := p.client.StorageV1().VolumeAttachments().Get(t.Context(), "va", metav1.GetOptions{})
		return err == nil && va.Status.AttachError != nil
	}, "the attachment fails")

	driver.serve(t)
	p.eventually(p.isAttached, "attached")
	p.eventually(p.hasVolume, "provisioned")
	p.eventually(func() bool {
		pv, err := p.client.CoreV1().PersistentVolumes().Get(t.Context(), "in-use", metav1.GetOptions{})
		return err == nil && pv.Spec.Capacity.Storage().Value() == 2<<20
	}, "expanded")
	p.eventually(func() bool {
		_, err := p.client.CoreV1().PersistentVolumes().Get(t.Context(), "released", metav1.GetOptions{})
		return err != nil
	}, "deleted")
	p.eventually(func() bool {
		capacities, err := p.client.StorageV1().CSIStorageCapacities("").List(t.Context(), metav1.ListOptions{})
		return err == nil && len(capacities.Items) == 1
	}, "the capacity is published")
}
