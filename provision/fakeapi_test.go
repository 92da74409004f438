package provision_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	k8stesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/provision"
)

const driverName = "example.com/disk"

// fakeAPI is an API server in memory, with what client-go's fake lacks and this package depends on: UIDs,
// finalizers, UID preconditions. step plays the part of Kubernetes' own volume controller.
type fakeAPI struct {
	mu      sync.Mutex
	tracker k8stesting.ObjectTracker
	react   k8stesting.ReactionFunc
	uids    int
	// writes counts what was written, by verb and resource.
	writes map[string]int
	// events are the reasons of the events that were written.
	events []string
}

// versioned gives every written object a resourceVersion.
type versioned struct {
	k8stesting.ObjectTracker
	last atomic.Int64
}

func (v *versioned) stamp(obj runtime.Object) runtime.Object {
	obj = obj.DeepCopyObject()
	if m, err := meta.Accessor(obj); err == nil {
		m.SetResourceVersion(strconv.FormatInt(v.last.Add(1), 10))
	}
	return obj
}

func (v *versioned) Add(obj runtime.Object) error { return v.ObjectTracker.Add(v.stamp(obj)) }

func (v *versioned) Create(
	gvr schema.GroupVersionResource, obj runtime.Object, ns string, opts ...metav1.CreateOptions,
) error {
	return v.ObjectTracker.Create(gvr, v.stamp(obj), ns, opts...)
}

func (v *versioned) Update(
	gvr schema.GroupVersionResource, obj runtime.Object, ns string, opts ...metav1.UpdateOptions,
) error {
	return v.ObjectTracker.Update(gvr, v.stamp(obj), ns, opts...)
}

func (v *versioned) Patch(
	gvr schema.GroupVersionResource, obj runtime.Object, ns string, opts ...metav1.PatchOptions,
) error {
	return v.ObjectTracker.Patch(gvr, v.stamp(obj), ns, opts...)
}

func newFakeAPI(objects ...runtime.Object) *fakeAPI {
	tracker := &versioned{
		ObjectTracker: k8stesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder()),
	}
	api := &fakeAPI{tracker: tracker, react: k8stesting.ObjectReaction(tracker), writes: map[string]int{}}
	for _, obj := range objects {
		if err := tracker.Add(obj); err != nil {
			panic(err)
		}
	}
	return api
}

// fault is what befalls one request.
type fault int

const (
	noFault fault = iota
	failBefore
	failAfter // the request is carried out and the answer lost
	killBefore
	killAfter
)

// process is one life of a controller: its client and its backend calls end with it.
type process struct {
	mu   sync.Mutex
	dead bool
	kill context.CancelFunc
	// nextFault is asked before each API request and each backend call, if it is set.
	nextFault func(what string) fault
}

var errDead = errors.New("connection refused")

// enter decides over one request. after must be called when it was carried out.
func (p *process) enter(what string) (after func() error, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return nil, errDead
	}
	v := noFault
	if p.nextFault != nil {
		v = p.nextFault(what)
	}
	switch v {
	case failBefore:
		return nil, apierrors.NewInternalError(fmt.Errorf("injected before %s", what))
	case killBefore:
		p.die()
		return nil, errDead
	}
	return func() error {
		switch v {
		case failAfter:
			return apierrors.NewTimeoutError(fmt.Sprintf("injected after %s", what), 0)
		case killAfter:
			p.mu.Lock()
			defer p.mu.Unlock()
			p.die()
			return errDead
		}
		return nil
	}, nil
}

func (p *process) die() {
	p.dead = true
	p.kill()
}

// client returns a client of the world whose requests pass through the process. A nil process lets all pass.
func (api *fakeAPI) client(p *process) *fake.Clientset {
	cs := &fake.Clientset{}
	cs.AddReactor("*", "*", func(action k8stesting.Action) (bool, runtime.Object, error) {
		if p == nil {
			return api.handle(action)
		}
		after, err := p.enter(action.GetVerb() + " " + action.GetResource().Resource)
		if err != nil {
			return true, nil, err
		}
		handled, obj, err := api.handle(action)
		if lost := after(); lost != nil {
			return true, nil, lost
		}
		return handled, obj, err
	})
	cs.AddWatchReactor("*", func(action k8stesting.Action) (bool, watch.Interface, error) {
		var opts metav1.ListOptions
		if a, ok := action.(k8stesting.WatchActionImpl); ok {
			opts = a.ListOptions
		}
		watcher, err := api.tracker.Watch(action.GetResource(), action.GetNamespace(), opts)
		return true, watcher, err
	})
	return cs
}

func (api *fakeAPI) handle(action k8stesting.Action) (bool, runtime.Object, error) {
	api.mu.Lock()
	defer api.mu.Unlock()
	switch action.GetVerb() {
	case "create", "update", "patch", "delete":
		api.writes[action.GetVerb()+" "+action.GetResource().Resource]++
	}
	if create, is := action.(k8stesting.CreateActionImpl); is {
		if event, is := create.Object.(*corev1.Event); is {
			api.events = append(api.events, event.Reason)
		}
	}
	gvr, ns := action.GetResource(), action.GetNamespace()
	switch a := action.(type) {
	case k8stesting.CreateActionImpl:
		obj, err := meta.Accessor(a.Object)
		if err != nil {
			return true, nil, err
		}
		if obj.GetUID() == "" {
			api.uids++
			obj.SetUID(types.UID(fmt.Sprintf("uid-%d", api.uids)))
		}
		return api.react(action)
	case k8stesting.DeleteActionImpl:
		return true, nil, api.delete(a)
	case k8stesting.PatchActionImpl:
		before, err := api.tracker.Get(gvr, ns, a.Name)
		if err != nil {
			return true, nil, err
		}
		before = before.DeepCopyObject()
		handled, obj, err := api.react(action)
		if err != nil {
			return handled, obj, err
		}
		return true, obj, api.patched(a, before, obj)
	}
	return api.react(action)
}

func (api *fakeAPI) delete(a k8stesting.DeleteActionImpl) error {
	gvr, ns := a.GetResource(), a.GetNamespace()
	found, err := api.tracker.Get(gvr, ns, a.Name)
	if err != nil {
		return err
	}
	found = found.DeepCopyObject()
	obj, err := meta.Accessor(found)
	if err != nil {
		return err
	}
	if p := a.DeleteOptions.Preconditions; p != nil && p.UID != nil && *p.UID != obj.GetUID() {
		return apierrors.NewConflict(gvr.GroupResource(), a.Name, errors.New("UID differs"))
	}
	if len(obj.GetFinalizers()) == 0 {
		return api.tracker.Delete(gvr, ns, a.Name)
	}
	if obj.GetDeletionTimestamp() == nil {
		now := metav1.Now()
		obj.SetDeletionTimestamp(&now)
		return api.tracker.Update(gvr, found, ns)
	}
	return nil
}

// patched undoes a patch that an API server would not have taken, and ends objects without finalizers.
func (api *fakeAPI) patched(a k8stesting.PatchActionImpl, before, after runtime.Object) error {
	gvr, ns := a.GetResource(), a.GetNamespace()
	was, err := meta.Accessor(before)
	if err != nil {
		return err
	}
	is, err := meta.Accessor(after)
	if err != nil {
		return err
	}
	if was.GetUID() != is.GetUID() {
		return errors.Join(api.tracker.Update(gvr, before, ns),
			apierrors.NewConflict(gvr.GroupResource(), a.Name, errors.New("UID differs")))
	}
	if is.GetDeletionTimestamp() == nil {
		return nil
	}
	for _, f := range is.GetFinalizers() {
		if !slices.Contains(was.GetFinalizers(), f) {
			return errors.Join(api.tracker.Update(gvr, before, ns),
				apierrors.NewForbidden(gvr.GroupResource(), a.Name, errors.New("no new finalizers while deleting")))
		}
	}
	if len(is.GetFinalizers()) == 0 {
		return api.tracker.Delete(gvr, ns, a.Name)
	}
	return nil
}

// maxChangesPerStep is how many changes are made before what follows from them has to happen.
const maxChangesPerStep = 40

// bindAndRelease binds claims to their volumes and releases the volumes of deleted claims.
func (api *fakeAPI) bindAndRelease(t testing.TB) {
	t.Helper()
	for api.bindAndReleaseSome(t) {
		synctest.Wait()
	}
}

// bindAndReleaseSome returns whether more may be left to do.
func (api *fakeAPI) bindAndReleaseSome(t testing.TB) bool {
	t.Helper()
	changes := 0
	ctx, client := t.Context(), api.client(nil)
	byUID := map[types.UID]*corev1.PersistentVolumeClaim{}
	for _, claim := range api.claims(t) {
		byUID[claim.UID] = &claim
	}
	for _, pv := range api.volumes(t) {
		if changes >= maxChangesPerStep {
			return true
		}
		claim := byUID[pv.Spec.ClaimRef.UID]
		phase := corev1.VolumeReleased
		if claim != nil && (claim.Spec.VolumeName == "" || claim.Spec.VolumeName == pv.Name) {
			phase = corev1.VolumeBound
		}
		if claim != nil && claim.Spec.VolumeName == "" {
			changes++
			claim.Spec.VolumeName, claim.Status.Phase = pv.Name, corev1.ClaimBound
			_, err := client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{})
			if !apierrors.IsNotFound(err) { // gone since it was read
				require.NoError(t, err)
			}
		}
		if pv.Status.Phase != phase {
			changes++
			pv.Status.Phase = phase
			_, err := client.CoreV1().PersistentVolumes().Update(ctx, &pv, metav1.UpdateOptions{})
			require.NoError(t, err)
		}
	}
	return false
}

func (api *fakeAPI) claims(t testing.TB) []corev1.PersistentVolumeClaim {
	t.Helper()
	list, err := api.client(nil).CoreV1().PersistentVolumeClaims("").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	return list.Items
}

func (api *fakeAPI) claim(t testing.TB, name string) *corev1.PersistentVolumeClaim {
	t.Helper()
	claim, err := api.client(nil).CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return claim
}

func (api *fakeAPI) volumes(t testing.TB) []corev1.PersistentVolume {
	t.Helper()
	list, err := api.client(nil).CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	return list.Items
}

func (api *fakeAPI) createClaim(t testing.TB, claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	t.Helper()
	made, err := api.client(nil).CoreV1().PersistentVolumeClaims("ns").Create(t.Context(), claim, metav1.CreateOptions{})
	require.NoError(t, err)
	return made
}

func (api *fakeAPI) deleteClaim(t testing.TB, name string) {
	t.Helper()
	err := api.client(nil).CoreV1().PersistentVolumeClaims("ns").Delete(t.Context(), name, metav1.DeleteOptions{})
	if !apierrors.IsNotFound(err) {
		require.NoError(t, err)
	}
}

func (api *fakeAPI) updateClaim(t testing.TB, name string, change func(*corev1.PersistentVolumeClaim)) {
	t.Helper()
	claim := api.claim(t, name)
	change(claim)
	_, err := api.client(nil).CoreV1().PersistentVolumeClaims("ns").Update(t.Context(), claim, metav1.UpdateOptions{})
	require.NoError(t, err)
}

func newClass(name string) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: name, UID: types.UID("class-" + name)},
		Provisioner: driverName,
	}
}

func newClaim(name, class string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "ns",
			Annotations: map[string]string{"volume.kubernetes.io/storage-provisioner": driverName},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
}

// newVolume is what a simple provisioner returns.
func newVolume(o provision.VolumeOptions) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: o.PVName},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: o.PersistentVolumeReclaimPolicy,
			AccessModes:                   o.PVC.Spec.AccessModes,
			Capacity:                      o.PVC.Spec.Resources.Requests,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/" + o.PVName},
			},
		},
	}
}
