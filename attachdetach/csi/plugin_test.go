package csi_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/attachdetach/csi"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	driver = "disk.example.com"
	node   = types.NodeName("a")
	soon   = time.Minute
)

var attachments = storagev1.SchemeGroupVersion.WithResource("volumeattachments")

// fixture is an API server in memory, in which the test is the attacher.
type fixture struct {
	t      *testing.T
	client *fake.Clientset
	clock  *testclock.FakeClock
	plugin *csi.Plugin
	full   atomic.Bool // nothing more can be made
}

func newFixture(t *testing.T) *fixture {
	w := &fixture{t: t, client: fake.NewClientset(), clock: testclock.NewFakeClock(time.Now())}
	// As the API server does: an object gets an identity, and one with finalizers outlives its deletion.
	w.client.PrependReactor("create", "volumeattachments", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if w.full.Load() {
			return true, nil, errors.New("no space")
		}
		va := action.(clienttesting.CreateAction).GetObject().(*storagev1.VolumeAttachment)
		va.UID, va.Finalizers = types.UID(va.Name), []string{"attacher"}
		return false, nil, nil
	})
	w.client.PrependReactor("delete", "volumeattachments", func(action clienttesting.Action) (bool, runtime.Object, error) {
		va := w.get(action.(clienttesting.DeleteAction).GetName())
		if va == nil {
			return false, nil, nil
		}
		va.DeletionTimestamp = ptr.To(metav1.Now())
		return true, nil, w.client.Tracker().Update(attachments, va, "")
	})
	factory := informers.NewSharedInformerFactory(w.client, 0)
	var err error
	w.plugin, err = csi.New(csi.Deps{
		Client: w.client, Attachments: factory.Storage().V1().VolumeAttachments(),
		Drivers: factory.Storage().V1().CSIDrivers(), Clock: w.clock,
	}, csi.Config{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	factory.StartWithContext(ctx)
	factory.WaitForCacheSync(ctx.Done())
	return w
}

func spec(handle string) *volume.Spec {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}
	return &volume.Spec{Name: "pv", PV: pv}
}

func (w *fixture) get(name string) *storagev1.VolumeAttachment {
	obj, err := w.client.Tracker().Get(attachments, "", name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(w.t, err)
	return obj.(*storagev1.VolumeAttachment).DeepCopy()
}

// waitAttachment waits until there is such an attachment.
func (w *fixture) waitAttachment(name string, satisfies func(*storagev1.VolumeAttachment) bool) *storagev1.VolumeAttachment {
	w.t.Helper()
	require.Eventually(w.t, func() bool { va := w.get(name); return va != nil && satisfies(va) }, soon, time.Millisecond, name)
	return w.get(name)
}

func (w *fixture) updateStatus(va *storagev1.VolumeAttachment, change func(*storagev1.VolumeAttachmentStatus)) {
	change(&va.Status)
	require.NoError(w.t, w.client.Tracker().Update(attachments, va, ""))
}

// start runs a call beside the test.
func start(call func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	return done
}

func (w *fixture) attach(handle string) <-chan error {
	return start(func() error { _, err := w.plugin.Attach(context.Background(), spec(handle), node); return err })
}

func (w *fixture) detach(handle string) <-chan error {
	return start(func() error { return w.plugin.Detach(context.Background(), csi.VolumeName(driver, handle), node) })
}

func (w *fixture) waitResult(done <-chan error) error {
	w.t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(soon):
		w.t.Fatal("the call does not end")
		return nil
	}
}

func isNew(*storagev1.VolumeAttachment) bool       { return true }
func deleting(va *storagev1.VolumeAttachment) bool { return va.DeletionTimestamp != nil }

// B-22, B-23: names are those that kubelets and attachers compute.
func TestNames(t *testing.T) {
	// sha256("handle" + "disk.example.com" + "a"), without anything between.
	require.Equal(t, "csi-5725d98e0ae331ec58957d2ed8fe7bfe24de0c9cdb747f8ac380c48e5834ba0a",
		csi.AttachmentName(driver, "handle", node))
	require.Equal(t, csi.AttachmentName("bc", "a", "d"), csi.AttachmentName("c", "ab", "d"), "collisions are part of the contract")
	require.Equal(t, "disk.example.com^handle", csi.VolumeName(driver, "handle"))
	require.Equal(t, corev1.UniqueVolumeName("kubernetes.io/csi/disk.example.com^handle"),
		operationexecutor.UniqueVolumeName(csi.PluginName, csi.VolumeName(driver, "handle")))
	name, handle, err := csi.SplitVolumeName("disk.example.com^a^b")
	require.NoError(t, err)
	require.Equal(t, driver, name)
	require.Equal(t, "a^b", handle)
	_, _, err = csi.SplitVolumeName("nothing")
	require.Error(t, err)
}

// B-24: the answer is heard when it is given; no time passes in this test.
func TestAttach(t *testing.T) {
	w := newFixture(t)
	name := csi.AttachmentName(driver, "h", node)
	done := w.attach("h")
	va := w.waitAttachment(name, isNew)
	require.Equal(t, driver, va.Spec.Attacher)
	require.Equal(t, "a", va.Spec.NodeName)
	require.Equal(t, "pv", *va.Spec.Source.PersistentVolumeName)
	w.updateStatus(va, func(s *storagev1.VolumeAttachmentStatus) {
		s.AttachError = &storagev1.VolumeError{Message: "no luck 100%d"}
	})
	require.EqualError(t, w.waitResult(done), "no luck 100%d")

	w.updateStatus(w.get(name), func(s *storagev1.VolumeAttachmentStatus) { s.AttachError, s.Attached = nil, true })
	require.Eventually(t, func() bool { return w.waitResult(w.attach("h")) == nil }, soon, time.Millisecond)
	creates := 0
	for _, action := range w.client.Actions() {
		if action.Matches("create", "volumeattachments") {
			creates++
		}
	}
	require.Equal(t, 1, creates, "the one that is there serves")
}

// what keeps an attach from succeeding.
func TestAttachThatCannotBe(t *testing.T) {
	w := newFixture(t)
	name := csi.AttachmentName(driver, "h", node)
	done := w.attach("h")
	va := w.waitAttachment(name, isNew)
	va.DeletionTimestamp = ptr.To(metav1.Now())
	w.updateStatus(va, func(s *storagev1.VolumeAttachmentStatus) { s.Attached = true })
	require.ErrorContains(t, w.waitResult(done), "is being deleted")

	require.NoError(t, w.client.Tracker().Delete(attachments, "", name))
	done = w.attach("i")
	other := csi.AttachmentName(driver, "i", node)
	w.waitAttachment(other, isNew)
	require.Eventually(t, func() bool { w.clock.Step(csi.DefaultTimeout); return len(done) > 0 }, soon, time.Millisecond)
	require.ErrorContains(t, <-done, "check whether the driver's attacher runs")

	done = w.attach("i")
	require.Eventually(t, w.clock.HasWaiters, soon, time.Millisecond)
	require.NoError(t, w.client.Tracker().Delete(attachments, "", other))
	require.ErrorContains(t, w.waitResult(done), "deleted by someone else")

	w.full.Store(true)
	require.ErrorContains(t, w.waitResult(w.attach("j")), "no space")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := w.plugin.Attach(ctx, spec("j"), node)
	require.Error(t, err)
}

// a detach is over when the attachment is gone, and not before.
func TestDetach(t *testing.T) {
	w := newFixture(t)
	require.NoError(t, w.waitResult(w.detach("never-attached")))
	name := csi.AttachmentName(driver, "h", node)
	attached := w.attach("h")
	w.updateStatus(w.waitAttachment(name, isNew), func(s *storagev1.VolumeAttachmentStatus) { s.Attached = true })
	require.NoError(t, w.waitResult(attached))

	done := w.detach("h")
	va := w.waitAttachment(name, deleting)
	require.Empty(t, done, "it is still attached")
	w.updateStatus(va, func(s *storagev1.VolumeAttachmentStatus) { s.DetachError = &storagev1.VolumeError{Message: "in use"} })
	require.EqualError(t, w.waitResult(done), "in use")

	// The next try is not deceived by the error of the one before.
	done = w.detach("h")
	require.Eventually(t, w.clock.HasWaiters, soon, time.Millisecond)
	require.Empty(t, done)
	require.ErrorContains(t, w.waitResult(w.attach("h")), "is being deleted", "what goes cannot be had")
	require.NoError(t, w.client.Tracker().Delete(attachments, "", name))
	require.NoError(t, w.waitResult(done))
	require.Error(t, w.plugin.Detach(context.Background(), "no-driver", node))
}

// R-104, B-12: what an attachment says counts; only its absence proves that there is none.
func TestAttachmentState(t *testing.T) {
	w := newFixture(t)
	name := csi.AttachmentName(driver, "h", node)
	look := func() operationexecutor.Verdict {
		verdicts, err := w.plugin.Verify(context.Background(), []operationexecutor.AttachedVolume{{
			VolumeName: operationexecutor.UniqueVolumeName(csi.PluginName, csi.VolumeName(driver, "h")),
		}}, node)
		require.NoError(t, err)
		require.Len(t, verdicts, 1)
		for _, verdict := range verdicts {
			return verdict
		}
		return 0
	}
	becomes := func(want operationexecutor.Verdict) {
		t.Helper()
		require.Eventually(t, func() bool { return look() == want }, soon, time.Millisecond)
	}
	require.Equal(t, operationexecutor.VerdictDetached, look())
	attached := w.attach("h")
	va := w.waitAttachment(name, isNew)
	becomes(operationexecutor.VerdictUncertain)
	w.updateStatus(va, func(s *storagev1.VolumeAttachmentStatus) { s.Attached = true })
	require.NoError(t, w.waitResult(attached))
	becomes(operationexecutor.VerdictAttached)
	va = w.get(name)
	va.DeletionTimestamp = ptr.To(metav1.Now())
	w.updateStatus(va, func(*storagev1.VolumeAttachmentStatus) {})
	becomes(operationexecutor.VerdictUncertain)
	require.NoError(t, w.client.Tracker().Delete(attachments, "", name))
	becomes(operationexecutor.VerdictDetached)

	_, err := w.plugin.Verify(context.Background(), []operationexecutor.AttachedVolume{{VolumeName: "x"}}, node)
	require.Error(t, err)
}

// a driver that needs no attachment has all of its volumes attached.
func TestDriverWithoutAttachments(t *testing.T) {
	w := newFixture(t)
	can, err := w.plugin.CanAttach(spec("h"))
	require.NoError(t, err)
	require.True(t, can, "without a CSIDriver")
	object := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}}
	object.Spec.AttachRequired = ptr.To(false)
	require.NoError(t, w.client.Tracker().Add(object))
	require.Eventually(t, func() bool {
		can, err := w.plugin.CanAttach(spec("h"))
		return err == nil && !can
	}, soon, time.Millisecond)
	verdict, err := w.plugin.AttachmentState(driver, "h", node)
	require.NoError(t, err)
	require.Equal(t, operationexecutor.VerdictAttached, verdict)
	can, err = w.plugin.CanAttach(&volume.Spec{Name: "v", Volume: &corev1.Volume{}})
	require.NoError(t, err)
	require.False(t, can)
	_, err = w.plugin.VolumeName(&volume.Spec{Name: "v", Volume: &corev1.Volume{}})
	require.Error(t, err)
	_, err = csi.New(csi.Deps{}, csi.Config{})
	require.EqualError(t, err, "attachdetach/csi: Deps.Client is required")
}
