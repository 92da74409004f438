package attacher_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/attachdetach/attacher"
	"github.com/berth-dev/berth/internal/testlog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const driverName = "disk.example.com"

// driver is a CSI driver in memory.
type driver struct {
	mu        sync.Mutex
	published map[string]string // volume to node
	err       error
	calls     int
	last      *csi.ControllerPublishVolumeRequest

	lastSecrets map[string]string // of the last unpublication

	capabilities    []csi.ControllerServiceCapability_RPC_Type
	capabilitiesErr error
}

func newDriver() *driver {
	return &driver{
		published:    make(map[string]string),
		capabilities: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME},
	}
}

func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest, ...grpc.CallOption,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.capabilitiesErr != nil {
		return nil, d.capabilitiesErr
	}
	response := &csi.ControllerGetCapabilitiesResponse{}
	for _, capability := range d.capabilities {
		response.Capabilities = append(response.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: capability}},
		})
	}
	return response, nil
}

func (d *driver) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest, _ ...grpc.CallOption,
) (*csi.ControllerPublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	d.last = r
	if d.err != nil {
		return nil, d.err
	}
	d.published[r.VolumeId] = r.NodeId
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"device": "/dev/x"}}, nil
}

func (d *driver) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest, _ ...grpc.CallOption,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	if d.err != nil {
		return nil, d.err
	}
	d.lastSecrets = r.Secrets
	if d.published[r.VolumeId] == r.NodeId {
		delete(d.published, r.VolumeId)
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

func (d *driver) set(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

type fixture struct {
	t      *testing.T
	client *fake.Clientset
	driver *driver
	clock  *testclock.FakeClock

	forbidden atomic.Bool // Secrets may not be read
}

func newFixture(t *testing.T) *fixture {
	d := newDriver()
	w := newFixtureWith(t, d, testlog.New(t, slog.DiscardHandler))
	w.driver = d
	return w
}

func newFixtureWith(t *testing.T, publisher attacher.Publisher, log *slog.Logger) *fixture {
	w := &fixture{t: t, client: fake.NewClientset(), clock: testclock.NewFakeClock(time.Now())}
	w.client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return w.forbidden.Load(), nil,
			apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "key", errors.New("no right"))
	})
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		Driver: driverName, VolumeHandle: "handle", FSType: "ext4", VolumeAttributes: map[string]string{"k": "v"},
	}
	require.NoError(t, w.client.Tracker().Add(pv))
	a, err := attacher.New(attacher.Deps{Client: w.client, Driver: publisher, Clock: w.clock, Logger: log},
		attacher.Config{DriverName: driverName})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	watched := w.noteWatches()
	go func() { done <- a.Start(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
	for missing := map[string]bool{"volumeattachments": true, "persistentvolumes": true, "csinodes": true}; len(missing) > 0; {
		delete(missing, <-watched)
	}
	return w
}

// noteWatches sends the name of each resource that is watched. Unlike an API server the fake client does not send what
// changed between a list and its watch, so a test must not change anything in between.
func (w *fixture) noteWatches() <-chan string {
	watched := make(chan string, 100)
	w.client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		stream, err := w.client.Tracker().Watch(action.GetResource(), action.GetNamespace())
		if err == nil {
			watched <- action.GetResource().Resource
		}
		return true, stream, err
	})
	return watched
}

func (w *fixture) csiNode() {
	node := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	node.Spec.Drivers = []storagev1.CSINodeDriver{{Name: driverName, NodeID: "node-id"}}
	_, err := w.client.StorageV1().CSINodes().Create(context.Background(), node, metav1.CreateOptions{})
	require.NoError(w.t, err)
}

func (w *fixture) create(name, driver string) { w.createFor(name, driver, "pv") }

func (w *fixture) createFor(name, driver, volume string) {
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name + "-uid")}}
	va.Spec = storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: "a"}
	va.Spec.Source.PersistentVolumeName = &volume
	_, err := w.client.StorageV1().VolumeAttachments().Create(context.Background(), va, metav1.CreateOptions{})
	require.NoError(w.t, err)
}

func (w *fixture) get(name string) *storagev1.VolumeAttachment {
	va, err := w.client.StorageV1().VolumeAttachments().Get(context.Background(), name, metav1.GetOptions{})
	require.NoError(w.t, err)
	return va
}

func (w *fixture) eventually(f func() bool, what string) {
	w.t.Helper()
	require.Eventually(w.t, f, time.Minute, 2*time.Millisecond, what)
}

// remove does what the API server does with an object that has finalizers.
func (w *fixture) remove(name string) {
	va := w.get(name)
	va.DeletionTimestamp = ptr.To(metav1.Now())
	require.NoError(w.t, w.client.Tracker().Update(storagev1.SchemeGroupVersion.WithResource("volumeattachments"), va, ""))
}

func TestPublishAndUnpublish(t *testing.T) {
	w := newFixture(t)
	w.csiNode()
	w.create("foreign", "other.example.com")
	w.create("va", driverName)
	w.eventually(func() bool { return w.get("va").Status.Attached }, "it must be attached")
	va := w.get("va")
	require.Equal(t, map[string]string{"device": "/dev/x"}, va.Status.AttachmentMetadata)
	require.Equal(t, []string{"external-attacher/disk-example-com"}, va.Finalizers)
	require.Equal(t, "node-id", va.Annotations["csi.alpha.kubernetes.io/node-id"])
	w.driver.set(func() {
		require.Equal(t, map[string]string{"handle": "node-id"}, w.driver.published)
		require.Equal(t, "ext4", w.driver.last.VolumeCapability.GetMount().FsType)
		require.Equal(t, map[string]string{"k": "v"}, w.driver.last.VolumeContext)
	})
	require.NoError(t, w.client.CoreV1().PersistentVolumes().Delete(context.Background(), "pv", metav1.DeleteOptions{}))
	w.remove("va")
	w.eventually(func() bool { return len(w.get("va").Finalizers) == 0 }, "it must be detached, although its volume was deleted")
	w.driver.set(func() { require.Empty(t, w.driver.published) })
	require.Empty(t, w.get("foreign").Finalizers, "attachments of other drivers are left alone")
}

// recreateVolume deletes the PersistentVolume and creates it again for the volume with the handle.
func (w *fixture) recreateVolume(handle string) {
	w.t.Helper()
	ctx := w.t.Context()
	pv, err := w.client.CoreV1().PersistentVolumes().Get(ctx, "pv", metav1.GetOptions{})
	require.NoError(w.t, err)
	require.NoError(w.t, w.client.CoreV1().PersistentVolumes().Delete(ctx, "pv", metav1.DeleteOptions{}))
	pv.Spec.CSI.VolumeHandle = handle
	_, err = w.client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
	require.NoError(w.t, err)
}

// TestVolumeThatWasPublishedIsUnpublished detaches after an administrator has deleted the PersistentVolume, and has created one of
// its name for another volume, which the node has, too.
func TestVolumeThatWasPublishedIsUnpublished(t *testing.T) {
	w := newFixture(t)
	w.csiNode()
	w.create("va", driverName)
	w.eventually(func() bool { return w.get("va").Status.Attached }, "it must be attached")
	w.recreateVolume("other")
	w.driver.set(func() { w.driver.published["other"] = "node-id" })
	w.remove("va")
	w.eventually(func() bool { return len(w.get("va").Finalizers) == 0 }, "it must be detached")
	w.driver.set(func() { require.Equal(t, map[string]string{"other": "node-id"}, w.driver.published) })
}

// TestNewerVolumeIsNotPublishedForAnOlderAttachment creates the PersistentVolume again, for another volume, after an attempt to
// publish the first one that may have succeeded.
func TestNewerVolumeIsNotPublishedForAnOlderAttachment(t *testing.T) {
	w := newFixture(t)
	w.csiNode()
	w.driver.set(func() { w.driver.err = errors.New("deadline exceeded"); w.driver.published["handle"] = "node-id" })
	w.create("va", driverName)
	w.eventually(func() bool { return w.get("va").Status.AttachError != nil }, "the error must be recorded")
	w.recreateVolume("other")
	w.driver.set(func() { w.driver.err = nil })
	w.eventually(func() bool {
		w.clock.Step(time.Minute)
		va := w.get("va")
		return va.Status.Attached || strings.Contains(va.Status.AttachError.Message, "created again")
	}, "it must be tried again")
	w.driver.set(func() { require.Equal(t, map[string]string{"handle": "node-id"}, w.driver.published) })
	w.remove("va")
	w.eventually(func() bool { return len(w.get("va").Finalizers) == 0 }, "it must be detached")
	w.driver.set(func() { require.Empty(t, w.driver.published) })
}

// TestDriverThatDoesNotPublish attaches for a driver that has nothing to do before a node uses a volume, because its CSIDriver
// asks for it.
func TestDriverThatDoesNotPublish(t *testing.T) {
	for name, has := range map[string]func(*driver){
		"other capabilities": func(d *driver) {
			d.capabilities = []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}
		},
		"no controller service": func(d *driver) { d.capabilitiesErr = status.Error(codes.Unimplemented, "no such service") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			w.driver.set(func() { has(w.driver) })
			w.create("va", driverName) // the node has not even registered the driver
			w.eventually(func() bool { return w.get("va").Status.Attached }, "it must be attached")
			require.Empty(t, w.get("va").Finalizers, "there is nothing to undo")
			w.remove("va")
			require.Zero(t, w.driver.calls)
		})
	}
	t.Run("any more", func(t *testing.T) {
		w := newFixture(t)
		w.csiNode()
		w.create("va", driverName)
		w.eventually(func() bool { return w.get("va").Status.Attached }, "it must be attached")
		w.driver.set(func() { w.driver.capabilities = nil })
		w.remove("va")
		w.eventually(func() bool { return len(w.get("va").Finalizers) == 0 }, "it must be detached")
		w.driver.set(func() { require.Equal(t, 1, w.driver.calls, "a driver that cannot unpublish is not asked to") })
	})
	t.Run("is not known", func(t *testing.T) {
		w := newFixture(t)
		w.csiNode()
		w.driver.set(func() { w.driver.capabilitiesErr = status.Error(codes.Unavailable, "connection refused") })
		w.create("va", driverName)
		w.eventually(func() bool { return w.get("va").Status.AttachError != nil }, "the driver that is away must be reported")
		require.False(t, w.get("va").Status.Attached)
		w.driver.set(func() { w.driver.capabilitiesErr = nil })
		w.eventually(func() bool { w.clock.Step(time.Second); return w.get("va").Status.Attached }, "retry")
	})
}

func TestErrorsAreReportedAndRetried(t *testing.T) {
	w := newFixture(t)
	w.create("va", driverName)
	w.eventually(func() bool { return w.get("va").Status.AttachError != nil }, "the missing CSINode must be reported")
	require.Contains(t, w.get("va").Status.AttachError.Message, `csi node "a"`)
	require.Empty(t, w.get("va").Finalizers, "nothing was published")
	w.driver.set(func() { w.driver.err = errors.New("driver is busy") })
	w.csiNode()
	w.eventually(func() bool {
		e := w.get("va").Status.AttachError
		return e != nil && e.Message == "driver is busy"
	}, "the CSINode alone must bring the next try about")
	require.Nil(t, w.get("va").Status.AttachError.ErrorCode, "that was no answer of a driver")
	w.driver.set(func() {
		require.LessOrEqual(t, w.driver.calls, 2, "a failure must not be repeated at once")
		w.driver.err = status.Error(codes.ResourceExhausted, "no slot is free")
	})
	w.eventually(func() bool {
		w.clock.Step(time.Second)
		e := w.get("va").Status.AttachError
		return e != nil && e.ErrorCode != nil && codes.Code(*e.ErrorCode) == codes.ResourceExhausted
	}, "the code of the driver must be reported")
	w.driver.set(func() { w.driver.err = nil })
	w.eventually(func() bool { w.clock.Step(time.Second); return w.get("va").Status.Attached }, "retry")
	require.Nil(t, w.get("va").Status.AttachError)

	w.driver.set(func() { w.driver.err = errors.New("still in use") })
	w.remove("va")
	w.eventually(func() bool { return w.get("va").Status.DetachError != nil }, "the error must be reported")
	require.NotEmpty(t, w.get("va").Finalizers)
	w.driver.set(func() { w.driver.err = nil })
	w.eventually(func() bool { w.clock.Step(time.Second); return len(w.get("va").Finalizers) == 0 }, "retry")
}
