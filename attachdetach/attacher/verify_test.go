package attacher_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/attachdetach/attacher"
	"github.com/berth-dev/berth/internal/testlog"
)

// listingDriver is a driver that lists what is published, one volume per page.
type listingDriver struct {
	*driver
	lists   int // how often it was asked to
	listErr error
	// unlisted has it leave out the volume.
	unlisted bool
}

var _ attacher.Lister = (*listingDriver)(nil)

func newListingDriver() *listingDriver {
	d := newDriver()
	d.capabilities = append(d.capabilities, csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES)
	return &listingDriver{driver: d}
}

func (l *listingDriver) ListVolumes(_ context.Context, r *csi.ListVolumesRequest, _ ...grpc.CallOption,
) (*csi.ListVolumesResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entry := func(volume string) *csi.ListVolumesResponse_Entry {
		e := &csi.ListVolumesResponse_Entry{Volume: &csi.Volume{VolumeId: volume}, Status: &csi.ListVolumesResponse_VolumeStatus{}}
		if node := l.published[volume]; node != "" {
			e.Status.PublishedNodeIds = []string{node}
		}
		return e
	}
	if r.StartingToken == "" {
		l.lists++
		return &csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{entry("other")}, NextToken: "1"}, l.listErr
	}
	if l.unlisted {
		return &csi.ListVolumesResponse{}, l.listErr
	}
	return &csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{entry("handle")}}, l.listErr
}

// waitVerifications steps through time until so many verifications have begun.
func (l *listingDriver) waitVerifications(w *fixture, n int) {
	w.t.Helper()
	var until int
	l.set(func() { until = l.lists + n })
	w.eventually(func() bool {
		w.clock.Step(attacher.DefaultVerifyPeriod / 4)
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.lists >= until
	}, "the driver must be asked what is published")
}

// logBuffer is a log that can be read.
type logBuffer struct {
	mu sync.Mutex
	strings.Builder
}

func (x *logBuffer) Write(data []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.Builder.Write(data)
}

func (x *logBuffer) count(what string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return strings.Count(x.String(), what)
}

// waitPublished verifies until the volume is published again.
func (l *listingDriver) waitPublished(w *fixture) {
	w.t.Helper()
	w.eventually(func() bool {
		w.clock.Step(attacher.DefaultVerifyPeriod)
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.published["handle"] == "node-id"
	}, "it must be published again")
}

func TestDetachedBehindOurBack(t *testing.T) {
	l := newListingDriver()
	w := newFixtureWith(t, fixtureConfig{publisher: l})
	w.create("va", driverName)
	w.eventually(func() bool { return w.get("va").Status.Attached }, "it must be attached")
	l.waitVerifications(w, 2)
	l.set(func() {
		require.Equal(t, 1, l.calls, "what is as it should be is left alone")
		delete(l.published, "handle")
	})
	l.waitPublished(w)
	require.True(t, w.get("va").Status.Attached)

	// If that fails, it must not count as attached.
	l.set(func() {
		delete(l.published, "handle")
		l.err = errors.New("no such disk")
	})
	w.eventually(func() bool {
		w.clock.Step(attacher.DefaultVerifyPeriod) // the last publication's end undoes what a verification finds before it
		va := w.get("va")
		return !va.Status.Attached && va.Status.AttachError != nil && va.Status.AttachError.Message == "no such disk"
	}, "the loss must be reported")
	l.set(func() { l.err = nil })
	w.eventually(func() bool { w.clock.Step(time.Second); return w.get("va").Status.Attached }, "and repaired")
}

// TestVolumeThatIsNotListed has a driver that lists no volume that is published nowhere.
func TestVolumeThatIsNotListed(t *testing.T) {
	l := newListingDriver()
	w := newFixtureWith(t, fixtureConfig{publisher: l})
	w.create("va", driverName)
	w.eventually(func() bool { return w.get("va").Status.Attached }, "it must be attached")
	l.set(func() {
		l.unlisted = true
		delete(l.published, "handle")
	})
	l.waitPublished(w)
	require.True(t, w.get("va").Status.Attached)
}

func TestAttachedBehindOurBack(t *testing.T) {
	l, log := newListingDriver(), &logBuffer{}
	w := newFixtureWith(t, fixtureConfig{publisher: l, log: testlog.New(t, slog.NewTextHandler(log, nil))})
	w.create("va", driverName)
	w.eventually(func() bool { return w.get("va").Status.Attached }, "it must be attached")
	l.waitVerifications(w, 1)
	l.set(func() { l.published["other"] = "somewhere" })
	l.waitVerifications(w, 5)
	l.set(func() { require.Equal(t, "somewhere", l.published["other"], "it is not ours to undo") })
	w.eventually(func() bool { return log.count("without a volume attachment") == 1 }, "it must be said, once")
	require.Equal(t, 1, log.count("node=somewhere"))
}

func TestVerificationNeedsADriverThatLists(t *testing.T) {
	l := newListingDriver()
	l.capabilities = l.capabilities[:2]
	w := newFixtureWith(t, fixtureConfig{publisher: l})
	w.create("va", driverName)
	w.eventually(func() bool { return w.get("va").Status.Attached }, "it must be attached")
	for i := range 5 {
		w.clock.Step(attacher.DefaultVerifyPeriod)
		w.remove("va")
		w.waitDetached("va")
		require.NoError(t, w.client.StorageV1().VolumeAttachments().Delete(t.Context(), "va", metav1.DeleteOptions{}), i)
		w.create("va", driverName)
		w.eventually(func() bool { return w.get("va").Status.Attached }, "the attacher works on")
	}
	l.set(func() {
		require.Zero(t, l.lists)
	})
}

func TestDriverThatDoesNotAnswerProvesNothing(t *testing.T) {
	l := newListingDriver()
	w := newFixtureWith(t, fixtureConfig{publisher: l})
	w.create("va", driverName)
	w.eventually(func() bool { return w.get("va").Status.Attached }, "it must be attached")
	l.set(func() {
		l.listErr = errors.New("busy")
		delete(l.published, "handle")
	})
	l.waitVerifications(w, 3)
	l.set(func() {
		require.Equal(t, 1, l.calls)
		l.listErr = nil
	})
	w.eventually(func() bool {
		w.clock.Step(attacher.DefaultVerifyPeriod)
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.calls > 1
	}, "the next answer counts")
}

// TestPublishContextIsReplaced publishes a volume again, and the driver returns another context than the first time.
func TestPublishContextIsReplaced(t *testing.T) {
	l := newListingDriver()
	w := newFixtureWith(t, fixtureConfig{publisher: l})
	w.create("va", driverName)
	w.eventually(func() bool { return w.get("va").Status.Attached }, "it must be attached")
	require.Equal(t, map[string]string{"device": "/dev/x"}, w.get("va").Status.AttachmentMetadata)
	l.set(func() {
		delete(l.published, "handle")
		l.context = map[string]string{"lun": "3"}
	})
	w.eventually(func() bool {
		w.clock.Step(attacher.DefaultVerifyPeriod)
		return w.get("va").Status.AttachmentMetadata["lun"] == "3"
	}, "it must be published again")
	require.Equal(t, map[string]string{"lun": "3"}, w.get("va").Status.AttachmentMetadata, "nothing of the first one is left")
}

// TestPublishContextIsReplacedBeforeTheCacheHasTheFirst publishes a volume twice because the cache is behind.
func TestPublishContextIsReplacedBeforeTheCacheHasTheFirst(t *testing.T) {
	held := make(chan struct{})
	defer close(held)
	w := newFixtureWith(t, fixtureConfig{held: held})
	w.create("va", driverName)
	w.eventually(func() bool { return w.get("va").Status.Attached }, "it must be attached")
	w.driver.set(func() { w.driver.context = map[string]string{"lun": "3"} })
	node, err := w.client.StorageV1().CSINodes().Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	node.Labels = map[string]string{"changed": "yes"}
	_, err = w.client.StorageV1().CSINodes().Update(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	w.eventually(func() bool { w.clock.Step(time.Second); return w.get("va").Status.AttachmentMetadata["lun"] == "3" }, "again")
	require.Equal(t, map[string]string{"lun": "3"}, w.get("va").Status.AttachmentMetadata)
}

// TestAttachedVolumeHasNoError fails to publish a volume again that is attached, because the cache is behind.
func TestAttachedVolumeHasNoError(t *testing.T) {
	held := make(chan struct{})
	open := sync.OnceFunc(func() { close(held) })
	defer open()
	w := newFixtureWith(t, fixtureConfig{withoutCSINode: true, held: held})
	w.create("va", driverName)
	w.eventually(func() bool { return w.get("va").Status.AttachError != nil }, "the missing CSINode must be reported")
	w.csiNode()
	w.eventually(func() bool { w.clock.Step(time.Second); return w.get("va").Status.Attached }, "it must be attached")
	w.driver.set(func() { w.driver.err = errors.New("busy") })
	require.NoError(t, w.client.StorageV1().CSINodes().Delete(t.Context(), "a", metav1.DeleteOptions{}))
	w.csiNode()
	w.eventually(func() bool { w.clock.Step(time.Second); return w.get("va").Status.AttachError != nil }, "it must have failed")
	open()
	w.eventually(func() bool { w.clock.Step(time.Second); return w.get("va").Status.AttachError == nil }, "it is attached")
	require.True(t, w.get("va").Status.Attached)
}

// TestErrorThatIsSeenLaterThanTheAttachment has the cache see the error when nothing is left to be tried again.
func TestErrorThatIsSeenLaterThanTheAttachment(t *testing.T) {
	w := newFixture(t)
	w.create("va", driverName)
	w.eventually(func() bool { return w.get("va").Status.Attached }, "it must be attached")
	w.change("va", func(va *storagev1.VolumeAttachment) { va.Status.AttachError = &storagev1.VolumeError{Message: "busy"} })
	w.eventually(func() bool { return w.get("va").Status.AttachError == nil }, "it is attached")
	require.True(t, w.get("va").Status.Attached)
}

// TestVerificationOfWhatExternalAttacherHasAttached takes over from external-attacher, whose only record is the node's ID.
func TestVerificationOfWhatExternalAttacherHasAttached(t *testing.T) {
	l, log := newListingDriver(), &logBuffer{}
	w := newFixtureWith(t, fixtureConfig{publisher: l, log: testlog.New(t, slog.NewTextHandler(log, nil))})
	l.set(func() { l.published["handle"] = "node-id" })
	w.createFrom(func(va *storagev1.VolumeAttachment) {
		va.Annotations = map[string]string{"csi.alpha.kubernetes.io/node-id": "node-id"}
		va.Finalizers, va.Status.Attached = []string{"external-attacher/disk-example-com"}, true
	})
	l.waitVerifications(w, 5)
	require.Zero(t, log.count("without a volume attachment"), "it has one")
	l.set(func() { delete(l.published, "handle") })
	l.waitPublished(w)
}

// A volume with a controllerPublishSecretRef is published and unpublished with that Secret.
func TestSecrets(t *testing.T) {
	w := newFixtureWith(t, fixtureConfig{secret: &corev1.SecretReference{Namespace: "vault", Name: "key"}})
	w.forbidden.Store(true)
	w.create("va", driverName)
	w.eventually(func() bool { return w.get("va").Status.AttachError != nil }, "what is missing must be reported")
	message := w.get("va").Status.AttachError.Message
	require.Contains(t, message, "secret vault/key of field spec.csi.controllerPublishSecretRef")
	w.driver.set(func() { require.Zero(t, w.driver.calls, "the driver must not be called without its secret") })
	w.forbidden.Store(false)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "vault", Name: "key", UID: types.UID("s")}}
	secret.Data = map[string][]byte{"token": []byte("open sesame")}
	_, err := w.client.CoreV1().Secrets("vault").Create(t.Context(), secret, metav1.CreateOptions{})
	require.NoError(t, err)
	w.eventually(func() bool { w.clock.Step(time.Second); return w.get("va").Status.Attached }, "it must be attached")
	w.driver.set(func() { require.Equal(t, map[string]string{"token": "open sesame"}, w.driver.last.Secrets) })
	w.remove("va")
	w.waitDetached("va")
	w.driver.set(func() {
		require.Equal(t, map[string]string{"token": "open sesame"}, w.driver.lastUnpublish.GetSecrets())
	})
}
