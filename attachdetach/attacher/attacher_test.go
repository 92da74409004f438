package attacher_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const driverName = "disk.example.com"

// driver is a CSI driver in memory.
type driver struct {
	mu        sync.Mutex
	published map[string]string // volume to node
	err       error
	calls     int // of both kinds
	unpublish int // of these, unpublications
	last      *csi.ControllerPublishVolumeRequest
	context   map[string]string // of publications

	lastUnpublish *csi.ControllerUnpublishVolumeRequest

	capabilities    []csi.ControllerServiceCapability_RPC_Type
	capabilitiesErr error
}

func newDriver() *driver {
	return &driver{
		published:    make(map[string]string),
		context:      map[string]string{"device": "/dev/x"},
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
	return &csi.ControllerPublishVolumeResponse{PublishContext: d.context}, nil
}

func (d *driver) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest, _ ...grpc.CallOption,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	d.unpublish++
	if d.err != nil {
		return nil, d.err
	}
	d.lastUnpublish = r
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

func TestPublishAndUnpublish(t *testing.T) {
	w := newFixture(t)
	w.create("foreign", "other.example.com")
	w.create("va", driverName)
	w.eventually(func() bool { return w.get("va").Status.Attached }, "it must be attached")
	va := w.get("va")
	require.Equal(t, map[string]string{"device": "/dev/x"}, va.Status.AttachmentMetadata)
	require.Equal(t, []string{"external-attacher/disk-example-com"}, va.Finalizers)
	require.ErrorContains(t, w.attacher.Start(t.Context()), "was started before")
	require.Equal(t, "node-id", va.Annotations["csi.alpha.kubernetes.io/node-id"])
	w.driver.set(func() {
		require.Equal(t, map[string]string{"handle": "node-id"}, w.driver.published)
		require.Equal(t, "ext4", w.driver.last.VolumeCapability.GetMount().FsType)
		require.Equal(t, map[string]string{"k": "v"}, w.driver.last.VolumeContext)
	})
	require.NoError(t, w.client.CoreV1().PersistentVolumes().Delete(context.Background(), "pv", metav1.DeleteOptions{}))
	w.remove("va")
	w.waitDetached("va")
	w.driver.set(func() { require.Empty(t, w.driver.published) })
	require.Empty(t, w.get("foreign").Finalizers, "attachments of other drivers are left alone")
}

// TestVolumeThatWasPublishedIsUnpublished detaches after an administrator has deleted the PersistentVolume, and has created one of
// its name for another volume, which the node has, too.
func TestVolumeThatWasPublishedIsUnpublished(t *testing.T) {
	w := newFixture(t)
	w.create("va", driverName)
	w.eventually(func() bool { return w.get("va").Status.Attached }, "it must be attached")
	w.recreateVolume("other")
	w.driver.set(func() { w.driver.published["other"] = "node-id" })
	w.remove("va")
	w.waitDetached("va")
	w.driver.set(func() { require.Equal(t, map[string]string{"other": "node-id"}, w.driver.published) })
}

// TestNewerVolumeIsNotPublishedForAnOlderAttachment creates the PersistentVolume again, for another volume, after an attempt to
// publish the first one that may have succeeded.
func TestNewerVolumeIsNotPublishedForAnOlderAttachment(t *testing.T) {
	w := newFixture(t)
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
	w.waitDetached("va")
	w.driver.set(func() { require.Empty(t, w.driver.published) })
}

// TestAttachmentWithoutTheNodesRecord detaches after a user has removed the annotations. Without a node's name CSI unpublishes a volume from all
// nodes, of which others may use it.
func TestAttachmentWithoutTheNodesRecord(t *testing.T) {
	w := newFixture(t)
	w.create("va", driverName)
	w.eventually(func() bool { return w.get("va").Status.Attached }, "it must be attached")
	w.strip("va")
	w.remove("va")
	w.waitDetached("va")
	w.driver.set(func() {
		require.Equal(t, "node-id", w.driver.lastUnpublish.NodeId)
		require.Equal(t, "handle", w.driver.lastUnpublish.VolumeId)
	})

	w.create("other", driverName)
	w.eventually(func() bool { return w.get("other").Status.Attached }, "it must be attached")
	w.driver.set(func() { w.driver.unpublish = 0 })
	require.NoError(t, w.client.StorageV1().CSINodes().Delete(t.Context(), "a", metav1.DeleteOptions{}))
	w.eventually(func() bool { return !w.attacher.CachedNode("a") }, "the attacher must read that the node is gone")
	w.strip("other")
	w.remove("other")
	w.eventually(func() bool { return w.get("other").Status.DetachError != nil }, "the error must be reported")
	w.driver.set(func() { require.Zero(t, w.driver.unpublish, "the node is not known") })
}

// TestVolumeThatIsBeingDeletedIsNotAttached has a PersistentVolume that is attached, and to be deleted, when another node wants it.
func TestVolumeThatIsBeingDeletedIsNotAttached(t *testing.T) {
	w := newFixture(t)
	w.create("va", driverName)
	w.eventually(func() bool { return w.get("va").Status.Attached }, "it must be attached")
	pv, err := w.client.CoreV1().PersistentVolumes().Get(t.Context(), "pv", metav1.GetOptions{})
	require.NoError(t, err)
	pv.DeletionTimestamp, pv.Finalizers = ptr.To(metav1.Now()), []string{"kubernetes.io/pv-protection"}
	pv.Spec.CSI.VolumeHandle = "deleted" // by which the cache is recognised
	_, err = w.client.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{})
	require.NoError(t, err)
	w.waitForVolume("pv", "deleted")
	w.create("late", driverName)
	w.eventually(func() bool { return w.get("late").Status.AttachError != nil }, "the reason must be reported")
	require.Contains(t, w.get("late").Status.AttachError.Message, `persistent volume "pv" is being deleted`)
	require.Empty(t, w.get("late").Finalizers, "nothing was published")
	require.True(t, w.get("va").Status.Attached)
	w.remove("va")
	w.waitDetached("va")
	w.driver.set(func() { require.Empty(t, w.driver.published) })
}

// TestConflictIsNoErrorOfTheVolume attaches after the attacher has read an older version of the VolumeAttachment than the last.
func TestConflictIsNoErrorOfTheVolume(t *testing.T) {
	w := newFixture(t)
	w.outdated.Store(true)
	w.create("va", driverName)
	w.eventually(func() bool { w.clock.Step(time.Second); return w.get("va").Status.Attached }, "it must be attached")
	require.False(t, w.outdated.Load(), "a patch was refused")
	for _, action := range w.client.Actions() {
		if patch, ok := action.(clienttesting.PatchAction); ok {
			require.NotContains(t, string(patch.GetPatch()), "it has changed", "a conflict says nothing about the volume")
		}
	}
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
			w := newFixtureWith(t, fixtureConfig{withoutCSINode: true})
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
		w.create("va", driverName)
		w.eventually(func() bool { return w.get("va").Status.Attached }, "it must be attached")
		w.driver.set(func() { w.driver.capabilities = nil })
		w.remove("va")
		w.waitDetached("va")
		w.driver.set(func() { require.Zero(t, w.driver.unpublish, "a driver that cannot unpublish is not asked to") })
	})
	t.Run("is not known", func(t *testing.T) {
		w := newFixture(t)
		w.driver.set(func() { w.driver.capabilitiesErr = status.Error(codes.Unavailable, "connection refused") })
		w.create("va", driverName)
		w.eventually(func() bool { return w.get("va").Status.AttachError != nil }, "the driver that is away must be reported")
		require.False(t, w.get("va").Status.Attached)
		w.driver.set(func() { w.driver.capabilitiesErr = nil })
		w.eventually(func() bool { w.clock.Step(time.Second); return w.get("va").Status.Attached }, "retry")
	})
}

func TestErrorsAreReportedAndRetried(t *testing.T) {
	w := newFixtureWith(t, fixtureConfig{withoutCSINode: true})
	w.create("va", driverName)
	w.eventually(func() bool { return w.get("va").Status.AttachError != nil }, "the missing CSINode must be reported")
	require.Contains(t, w.get("va").Status.AttachError.Message, `csi node "a"`)
	require.Empty(t, w.get("va").Finalizers, "nothing was published")
	w.eventually(func() bool { return w.attacher.CachedAttachError("va") }, "the attacher must read what it wrote")
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
	w.waitDetached("va")
}

// TestLongErrors reports errors that are longer than the API server accepts.
func TestLongErrors(t *testing.T) {
	w := newFixture(t)
	long := "the disk is busy: " + strings.Repeat("é", 1000)
	w.driver.set(func() { w.driver.err = errors.New(long) })
	w.create("va", driverName)
	w.eventually(func() bool { return w.get("va").Status.AttachError != nil }, "the error must be reported")
	message := w.get("va").Status.AttachError.Message
	require.True(t, strings.HasPrefix(message, "the disk is busy: éé"), message)
	require.Greater(t, len(message), 1000, "as much of it as possible")
	require.True(t, utf8.ValidString(message))
	w.remove("va")
	w.eventually(func() bool { w.clock.Step(time.Second); return w.get("va").Status.DetachError != nil }, "that of a detach, too")
}

// TestDetachedVolumeWhoseAttachmentIsKept detaches for a VolumeAttachment that the finalizer of another controller keeps.
func TestDetachedVolumeWhoseAttachmentIsKept(t *testing.T) {
	w := newFixture(t)
	w.create("va", driverName)
	w.eventually(func() bool { return w.get("va").Status.Attached }, "it must be attached")
	w.change("va", func(va *storagev1.VolumeAttachment) { va.Finalizers = append(va.Finalizers, "example.com/audit") })
	w.driver.set(func() { w.driver.err = errors.New("still in use") })
	w.remove("va")
	w.eventually(func() bool { return w.get("va").Status.DetachError != nil }, "the error must be reported")
	w.driver.set(func() { w.driver.err = nil })
	w.eventually(func() bool { w.clock.Step(time.Second); return len(w.get("va").Finalizers) == 1 }, "it must be detached")
	w.eventually(func() bool { w.clock.Step(time.Second); return !w.get("va").Status.Attached }, "the status must be that")
	va := w.get("va")
	require.Equal(t, []string{"example.com/audit"}, va.Finalizers)
	require.Nil(t, va.Status.DetachError, "the last attempt has succeeded")
	require.Empty(t, va.Status.AttachmentMetadata)
}
