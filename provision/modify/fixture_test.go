package modify_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/testlog"
	"github.com/berth-dev/berth/provision/claimwork"
	"github.com/berth-dev/berth/provision/modify"
)

const driverName = "disk.example.com"

// fixture is an API server in memory with one claim, and a driver. Both outlive the modifiers that run on them.
type fixture struct {
	t         *testing.T
	clientset *fake.Clientset
	recorder  *record.FakeRecorder

	mu      sync.Mutex // guards all below
	version int
	// supported is what the driver reports.
	supported bool
	// calls has the parameters of each call; fail has the outcome of each.
	calls []map[string]string
	fail  func(parameters map[string]string) error
}

func newClientset() *fake.Clientset { return fake.NewClientset() }

func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t, clientset: newClientset(), recorder: record.NewFakeRecorder(1000), supported: true,
		fail: func(map[string]string) error { return nil }}
	f.clientset.PrependReactor("*", "*", f.react)
	f.create()
	return f
}

// run runs a test in a bubble, with a modifier.
func run(t *testing.T, test func(f *fixture)) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		stop := f.start()
		test(f)
		stop()
	})
}

// react gives objects the resource versions, and patches the preconditions, that client-go's fake lacks.
func (f *fixture) react(action k8stesting.Action) (bool, runtime.Object, error) {
	gvr, namespace := action.GetResource(), action.GetNamespace()
	switch a := action.(type) {
	case k8stesting.PatchActionImpl:
		found, err := f.clientset.Tracker().Get(gvr, namespace, a.Name)
		if err != nil {
			return true, nil, err
		}
		object, _ := meta.Accessor(found)
		var sent struct{ Metadata metav1.ObjectMeta }
		require.NoError(f.t, json.Unmarshal(a.Patch, &sent))
		if sent.Metadata.ResourceVersion != "" && sent.Metadata.ResourceVersion != object.GetResourceVersion() {
			return true, nil, apierrors.NewConflict(gvr.GroupResource(), a.Name, nil)
		}
		handled, obj, err := k8stesting.ObjectReaction(f.clientset.Tracker())(action)
		if err == nil {
			obj, err = f.stamp(action, obj)
		}
		return handled, obj, err
	case k8stesting.UpdateActionImpl:
		f.number(a.Object)
	case k8stesting.CreateActionImpl:
		f.number(a.Object)
	}
	return false, nil, nil
}

func (f *fixture) number(obj runtime.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	object, _ := meta.Accessor(obj)
	object.SetResourceVersion(strconv.Itoa(f.version))
}

func (f *fixture) stamp(action k8stesting.Action, obj runtime.Object) (runtime.Object, error) {
	obj = obj.DeepCopyObject()
	f.number(obj)
	return obj, f.clientset.Tracker().Update(action.GetResource(), obj, action.GetNamespace())
}

// start starts a modifier; stop ends it.
func (f *fixture) start() (stop func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	m, err := modify.New(modify.Deps{Driver: f, Deps: claimwork.Deps{Client: f.clientset, Recorder: f.recorder,
		Logger: testlog.New(f.t, slog.DiscardHandler)}}, modify.Config{DriverName: driverName})
	require.NoError(f.t, err)
	done := make(chan error, 1)
	go func() { done <- m.Start(ctx) }()
	synctest.Wait()
	return func() {
		cancel()
		require.NoError(f.t, <-done)
	}
}

// SupportsModify implements modify.Driver.
func (f *fixture) SupportsModify(context.Context) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.supported, nil
}

// ModifyVolume implements modify.Driver.
func (f *fixture) ModifyVolume(_ context.Context, _ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume, parameters map[string]string) error {
	require.Equal(f.t, "handle", pv.Spec.CSI.VolumeHandle)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, parameters)
	return f.fail(parameters)
}

// failWith sets the outcome of the calls.
func (f *fixture) failWith(fail func(parameters map[string]string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

// called returns the classes of the calls, by their parameter, and forgets them.
func (f *fixture) called() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var classes []string
	for _, parameters := range f.calls {
		classes = append(classes, parameters["class"])
	}
	f.calls = nil
	return classes
}

func (f *fixture) create() {
	ctx := f.t.Context()
	_, err := f.clientset.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "uid-pv"},
		Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "c", UID: "uid-c"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "handle"}}},
	}, metav1.CreateOptions{})
	require.NoError(f.t, err)
	_, err = f.clientset.CoreV1().PersistentVolumeClaims("ns").Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "ns", UID: "uid-c"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv"},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}, metav1.CreateOptions{})
	require.NoError(f.t, err)
	for _, name := range []string{"gold", "silver"} {
		f.createClass(name, driverName)
	}
	f.createClass("foreign", "other.example.com")
}

func (f *fixture) createClass(name, driver string) {
	f.t.Helper()
	_, err := f.clientset.StorageV1().VolumeAttributesClasses().Create(f.t.Context(), &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: driver, Parameters: map[string]string{"class": name}}, metav1.CreateOptions{})
	require.NoError(f.t, err)
}

func (f *fixture) claim() *corev1.PersistentVolumeClaim {
	f.t.Helper()
	claim, err := f.clientset.CoreV1().PersistentVolumeClaims("ns").Get(f.t.Context(), "c", metav1.GetOptions{})
	require.NoError(f.t, err)
	return claim.DeepCopy()
}

// name sets the class of the claim as a user would, and waits until the modifier rests.
func (f *fixture) name(class string) {
	f.t.Helper()
	claim := f.claim()
	claim.Spec.VolumeAttributesClassName = nil
	if class != "" {
		claim.Spec.VolumeAttributesClassName = ptr.To(class)
	}
	_, err := f.clientset.CoreV1().PersistentVolumeClaims("ns").Update(f.t.Context(), claim, metav1.UpdateOptions{})
	require.NoError(f.t, err)
	synctest.Wait()
}

// requireClass requires that the volume has the class, and that nothing is left of the modification.
func (f *fixture) requireClass(class string) {
	f.t.Helper()
	status := f.claim().Status
	require.Equal(f.t, class, ptr.Deref(status.CurrentVolumeAttributesClassName, ""))
	require.Nil(f.t, status.ModifyVolumeStatus)
	require.Empty(f.t, status.Conditions)
	pv, err := f.clientset.CoreV1().PersistentVolumes().Get(f.t.Context(), "pv", metav1.GetOptions{})
	require.NoError(f.t, err)
	require.Equal(f.t, class, ptr.Deref(pv.Spec.VolumeAttributesClassName, ""))
}

// requireStatus requires that the modification is in that state, with one condition that has the text.
func (f *fixture) requireStatus(state corev1.PersistentVolumeClaimModifyVolumeStatus, class string,
	kind corev1.PersistentVolumeClaimConditionType, text string,
) {
	f.t.Helper()
	status := f.claim().Status
	require.Equal(f.t, &corev1.ModifyVolumeStatus{TargetVolumeAttributesClassName: class, Status: state}, status.ModifyVolumeStatus)
	require.Len(f.t, status.Conditions, 1)
	require.Equal(f.t, kind, status.Conditions[0].Type)
	require.Contains(f.t, status.Conditions[0].Message, text)
}
