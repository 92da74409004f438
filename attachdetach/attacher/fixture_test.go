package attacher_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
	"github.com/berth-dev/berth/internal/testwatch"
)

// fixture is an attacher that runs, with a driver, a PersistentVolume "pv" and, by default, the CSINode "a" that has the driver.
// A CSINode that is created later leads to a second sync, at any time.
type fixture struct {
	t        *testing.T
	client   *fake.Clientset
	driver   *driver
	clock    *testclock.FakeClock
	attacher *attacher.Attacher

	forbidden atomic.Bool // Secrets may not be read
	outdated  atomic.Bool // the next patch that names a version is based on an older one

	mu      sync.Mutex // held while a VolumeAttachment is written
	version int        // the resourceVersion of the VolumeAttachment that was written last
}

// fixtureConfig says what differs from the fixture's default.
type fixtureConfig struct {
	publisher      attacher.Publisher // instead of the fixture's driver
	log            *slog.Logger
	withoutCSINode bool
	secret         *corev1.SecretReference // of the PersistentVolume
	held           chan struct{}           // if not nil, the attacher sees only after its end what is attached
}

func newFixture(t *testing.T) *fixture { return newFixtureWith(t, fixtureConfig{}) }

func newFixtureWith(t *testing.T, config fixtureConfig) *fixture {
	w := &fixture{t: t, client: fake.NewClientset(), clock: testclock.NewFakeClock(time.Now())}
	if config.publisher == nil {
		w.driver = newDriver()
		config.publisher = w.driver
	}
	if config.log == nil {
		config.log = testlog.New(t, slog.DiscardHandler)
	}
	w.client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return w.forbidden.Load(), nil,
			apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "key", errors.New("no right"))
	})
	w.client.PrependReactor("patch", "volumeattachments", w.patchAttachment)
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		Driver: driverName, VolumeHandle: "handle", FSType: "ext4", VolumeAttributes: map[string]string{"k": "v"},
		ControllerPublishSecretRef: config.secret,
	}
	require.NoError(t, w.client.Tracker().Add(pv))
	if !config.withoutCSINode {
		w.csiNode()
	}
	w.start(config)
	return w
}

func (w *fixture) start(config fixtureConfig) {
	var err error
	w.attacher, err = attacher.New(attacher.Deps{Client: w.client, Driver: config.publisher, Clock: w.clock, Logger: config.log},
		attacher.Config{DriverName: driverName})
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	watched := w.noteWatches(config.held)
	go func() { done <- w.attacher.Start(ctx) }()
	w.t.Cleanup(func() { cancel(); require.NoError(w.t, <-done) })
	for missing := map[string]bool{"volumeattachments": true, "persistentvolumes": true, "csinodes": true}; len(missing) > 0; {
		delete(missing, <-watched)
	}
	w.eventually(func() bool { return w.attacher.Ready() == nil }, "the attacher must have what existed at the start")
}

// noteWatches sends the name of each resource that is watched. Unlike an API server the fake client does not send what
// changed between a list and its watch, so a test must not change anything in between.
func (w *fixture) noteWatches(held <-chan struct{}) <-chan string {
	watched := make(chan string, 100)
	watchOf := testwatch.CopiesAfter(w.client.Tracker(), func(event watch.Event) {
		if va, ok := event.Object.(*storagev1.VolumeAttachment); ok && va.Status.Attached && held != nil {
			<-held
		}
	})
	w.client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		handled, stream, err := watchOf(action)
		if err == nil {
			watched <- action.GetResource().Resource
		}
		return handled, stream, err
	})
	return watched
}

// patchAttachment patches a VolumeAttachment as an API server does and the fake client does not: no other write comes between its
// read and its write, and a patch that is based on an older version than the last is refused, as is an error that is too long.
func (w *fixture) patchAttachment(action clienttesting.Action) (bool, runtime.Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	patch := action.(clienttesting.PatchActionImpl)
	if patch.PatchType == types.JSONPatchType {
		version := fmt.Sprintf(`,{"op":"add","path":"/metadata/resourceVersion","value":"%s"}]`, w.nextVersion())
		patch.Patch = append(bytes.TrimSuffix(patch.Patch, []byte("]")), version...)
		return clienttesting.ObjectReaction(w.client.Tracker())(patch)
	}
	var change map[string]any
	if err := json.Unmarshal(patch.Patch, &change); err != nil {
		return true, nil, err
	}
	if hasLongError(change) {
		return true, nil, apierrors.NewInvalid(storagev1.SchemeGroupVersion.WithKind("VolumeAttachment").GroupKind(), patch.Name, nil)
	}
	metadata, ok := change["metadata"].(map[string]any)
	if !ok {
		metadata = make(map[string]any)
		change["metadata"] = metadata
	}
	current, err := w.client.Tracker().Get(patch.Resource, "", patch.Name)
	if err != nil {
		return true, nil, err
	}
	based, ok := metadata["resourceVersion"]
	if ok && (based != current.(*storagev1.VolumeAttachment).ResourceVersion || w.outdated.CompareAndSwap(true, false)) {
		return true, nil, apierrors.NewConflict(patch.Resource.GroupResource(), patch.Name, errors.New("it has changed"))
	}
	metadata["resourceVersion"] = w.nextVersion()
	patch.Patch, err = json.Marshal(change)
	if err != nil {
		return true, nil, err
	}
	return clienttesting.ObjectReaction(w.client.Tracker())(patch)
}

// hasLongError reports whether the status in the patch has an error that is longer than the API server allows.
func hasLongError(change map[string]any) bool {
	status, _ := change["status"].(map[string]any)
	for _, field := range []string{"attachError", "detachError"} {
		volumeError, _ := status[field].(map[string]any)
		if message, _ := volumeError["message"].(string); len(message) > 1024 {
			return true
		}
	}
	return false
}

// nextVersion returns a new resourceVersion. It is called with w.mu held.
func (w *fixture) nextVersion() string {
	w.version++
	return strconv.Itoa(w.version)
}

func (w *fixture) csiNode() {
	node := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	node.Spec.Drivers = []storagev1.CSINodeDriver{{Name: driverName, NodeID: "node-id"}}
	_, err := w.client.StorageV1().CSINodes().Create(context.Background(), node, metav1.CreateOptions{})
	require.NoError(w.t, err)
}

func (w *fixture) create(name, driver string) { w.createFor(name, driver, "pv") }

func (w *fixture) createFor(name, driver, volume string) {
	w.createFrom(func(va *storagev1.VolumeAttachment) {
		va.Name, va.UID, va.Spec.Attacher, va.Spec.Source.PersistentVolumeName = name, types.UID(name+"-uid"), driver, &volume
	})
}

// createFrom creates a VolumeAttachment "va" of the PersistentVolume "pv" for the node "a", with changes.
func (w *fixture) createFrom(change func(va *storagev1.VolumeAttachment)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va", UID: "va-uid", ResourceVersion: w.nextVersion()}}
	va.Spec = storagev1.VolumeAttachmentSpec{Attacher: driverName, NodeName: "a"}
	va.Spec.Source.PersistentVolumeName = ptr.To("pv")
	change(va)
	// By the tracker: the client has a lock of its own, under which it calls the reactors, and these wait for this one.
	require.NoError(w.t, w.client.Tracker().Create(attachments, va, ""))
}

// attachments is what the tracker keeps VolumeAttachments by.
var attachments = storagev1.SchemeGroupVersion.WithResource("volumeattachments")

func (w *fixture) get(name string) *storagev1.VolumeAttachment {
	va, err := w.client.StorageV1().VolumeAttachments().Get(context.Background(), name, metav1.GetOptions{})
	require.NoError(w.t, err)
	return va
}

func (w *fixture) eventually(f func() bool, what string) {
	w.t.Helper()
	require.Eventually(w.t, f, time.Minute, 2*time.Millisecond, what)
}

// change changes the VolumeAttachment as another client does.
func (w *fixture) change(name string, f func(va *storagev1.VolumeAttachment)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	current, err := w.client.Tracker().Get(attachments, "", name) // not by the client, as in createFrom
	require.NoError(w.t, err)
	va := current.(*storagev1.VolumeAttachment).DeepCopy()
	f(va)
	va.ResourceVersion = w.nextVersion()
	require.NoError(w.t, w.client.Tracker().Update(attachments, va, ""))
}

// strip removes all annotations.
func (w *fixture) strip(name string) {
	w.change(name, func(va *storagev1.VolumeAttachment) { va.Annotations = nil })
}

// remove does what the API server does with an object that has finalizers.
func (w *fixture) remove(name string) {
	w.change(name, func(va *storagev1.VolumeAttachment) { va.DeletionTimestamp = ptr.To(metav1.Now()) })
}

// waitDetached waits until the attacher has removed its finalizer. A write may have been refused, so it steps through time.
func (w *fixture) waitDetached(name string) {
	w.t.Helper()
	w.eventually(func() bool { w.clock.Step(time.Second); return len(w.get(name).Finalizers) == 0 }, "it must be detached")
}

// recreateVolume deletes the PersistentVolume and creates it again for the volume with the handle. It returns when the attacher knows.
func (w *fixture) recreateVolume(handle string) {
	w.t.Helper()
	ctx := w.t.Context()
	pv, err := w.client.CoreV1().PersistentVolumes().Get(ctx, "pv", metav1.GetOptions{})
	require.NoError(w.t, err)
	require.NoError(w.t, w.client.CoreV1().PersistentVolumes().Delete(ctx, "pv", metav1.DeleteOptions{}))
	pv.Spec.CSI.VolumeHandle = handle
	_, err = w.client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
	require.NoError(w.t, err)
	w.waitForVolume("pv", handle)
}

// waitForVolume waits until the attacher's cache has the PersistentVolume with that handle.
func (w *fixture) waitForVolume(name, handle string) {
	w.t.Helper()
	w.eventually(func() bool { return w.attacher.CachedHandle(name) == handle }, "the attacher must read the PersistentVolume")
}
