package snapshot_test

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/gentype"
	k8stesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
)

// fakeAPI is an API server in memory for snapshots, with versions, generations, preconditions and finalizers.
type fakeAPI struct {
	*k8stesting.Fake
	mu      sync.Mutex // guards all below
	tracker k8stesting.ObjectTracker
	version int
	// objects has all of a resource, by namespace and name.
	objects map[schema.GroupVersionResource]map[string]runtime.Object
}

func newFakeAPI() *fakeAPI {
	scheme := api.Scheme()
	for kind, object := range groupapi.Scheme().KnownTypes(groupapi.GroupVersion) {
		if strings.HasPrefix(kind, "Volume") {
			scheme.AddKnownTypeWithName(groupapi.GroupVersion.WithKind(kind), reflect.New(object).Interface().(runtime.Object))
		}
	}
	a := &fakeAPI{Fake: &k8stesting.Fake{}, version: 1, objects: map[schema.GroupVersionResource]map[string]runtime.Object{}}
	a.tracker = k8stesting.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder())
	a.AddReactor("*", "*", a.react)
	a.AddWatchReactor("*", func(action k8stesting.Action) (bool, watch.Interface, error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		source, err := a.tracker.Watch(action.GetResource(), action.GetNamespace())
		if err != nil {
			return true, nil, err
		}
		// What was created after the list that came before it would be lost: the tracker's watches begin with the next event.
		for key, object := range a.objects[action.GetResource()] {
			if strings.HasPrefix(key, action.GetNamespace()+"/") || action.GetNamespace() == "" {
				source.(*watch.RaceFreeFakeWatcher).Add(object.DeepCopyObject())
			}
		}
		return true, source, nil
	})
	return a
}

// IsWatchListSemanticsUnSupported makes informers list first.
func (a *fakeAPI) IsWatchListSemanticsUnSupported() bool { return true }

// save stores an object under the next version.
func (a *fakeAPI) save(action k8stesting.Action, object runtime.Object, store func(runtime.Object) error) (runtime.Object, error) {
	object = object.DeepCopyObject()
	m, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	a.version++
	m.SetResourceVersion(strconv.Itoa(a.version))
	if m.GetUID() == "" {
		m.SetUID(types.UID("uid-" + m.GetName()))
	}
	key := m.GetNamespace() + "/" + m.GetName()
	if a.objects[action.GetResource()] == nil {
		a.objects[action.GetResource()] = map[string]runtime.Object{}
	}
	a.objects[action.GetResource()][key] = object.DeepCopyObject()
	if m.GetDeletionTimestamp() != nil && len(m.GetFinalizers()) == 0 {
		delete(a.objects[action.GetResource()], key)
		return object, a.tracker.Delete(action.GetResource(), m.GetNamespace(), m.GetName())
	}
	return object, store(object.DeepCopyObject())
}

func (a *fakeAPI) react(action k8stesting.Action) (bool, runtime.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	resource, namespace := action.GetResource(), action.GetNamespace()
	update := func(object runtime.Object) error { return a.tracker.Update(resource, object, namespace) }
	switch action := action.(type) {
	case k8stesting.CreateActionImpl:
		saved, err := a.save(action, action.Object, func(object runtime.Object) error { return a.tracker.Create(resource, object, namespace) })
		return true, saved, err
	case k8stesting.PatchActionImpl:
		found, err := a.tracker.Get(resource, namespace, action.Name)
		if err != nil {
			return true, nil, err
		}
		patched, err := mergeInto(found, action)
		if err != nil {
			return true, nil, err
		}
		saved, err := a.save(action, patched, update)
		return true, saved, err
	case k8stesting.DeleteActionImpl:
		found, err := a.tracker.Get(resource, namespace, action.Name)
		if err != nil {
			return true, nil, err
		}
		found = found.DeepCopyObject()
		m, err := meta.Accessor(found)
		if err != nil {
			return true, nil, err
		}
		if m.GetDeletionTimestamp() == nil {
			now := metav1.Now()
			m.SetDeletionTimestamp(&now)
			_, err = a.save(action, found, update)
		}
		return true, nil, err
	}
	return k8stesting.ObjectReaction(a.tracker)(action)
}

// mergeInto applies a merge patch, and fails as the API server does if its preconditions do not hold.
func mergeInto(found runtime.Object, action k8stesting.PatchActionImpl) (runtime.Object, error) {
	m, err := meta.Accessor(found)
	if err != nil {
		return nil, err
	}
	var sent struct{ Metadata metav1.ObjectMeta }
	if err := json.Unmarshal(action.Patch, &sent); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if uid, version := sent.Metadata.UID, sent.Metadata.ResourceVersion; uid != "" && uid != m.GetUID() || version != "" && version != m.GetResourceVersion() {
		return nil, apierrors.NewConflict(action.Resource.GroupResource(), action.Name, fmt.Errorf("version %s", m.GetResourceVersion()))
	}
	var have, patch map[string]any
	data, err := json.Marshal(found)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &have); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(action.Patch, &patch); err != nil {
		return nil, err
	}
	merge(have, patch)
	if data, err = json.Marshal(have); err != nil {
		return nil, err
	}
	out := found.DeepCopyObject()
	switch out.(type) {
	case *api.VolumeSnapshot:
		out = &api.VolumeSnapshot{}
	case *api.VolumeSnapshotContent:
		out = &api.VolumeSnapshotContent{}
	case *groupapi.VolumeGroupSnapshot:
		out = &groupapi.VolumeGroupSnapshot{}
	case *groupapi.VolumeGroupSnapshotContent:
		out = &groupapi.VolumeGroupSnapshotContent{}
	}
	return out, json.Unmarshal(data, out)
}

func merge(into, patch map[string]any) {
	for key, value := range patch {
		inner, isMap := value.(map[string]any)
		old, wasMap := into[key].(map[string]any)
		switch {
		case value == nil:
			delete(into, key)
		case isMap && wasMap:
			merge(old, inner)
		case isMap:
			created := map[string]any{}
			merge(created, inner)
			into[key] = created
		default:
			into[key] = value
		}
	}
}

func pointers[T any](items []T) []*T {
	var all []*T
	for i := range items {
		all = append(all, &items[i])
	}
	return all
}

func fakeObjects[T any, O interface {
	*T
	runtime.Object
	metav1.Object
}](a *fakeAPI, version schema.GroupVersion, namespace, resource, kind string) *gentype.FakeClientWithList[O, *api.List[T]] {
	return gentype.NewFakeClientWithList(a.Fake, namespace, version.WithResource(resource), version.WithKind(kind),
		func() O { return O(new(T)) }, func() *api.List[T] { return &api.List[T]{} },
		func(to, from *api.List[T]) { to.ListMeta = from.ListMeta },
		func(list *api.List[T]) []O {
			var all []O
			for _, item := range pointers(list.Items) {
				all = append(all, O(item))
			}
			return all
		},
		func(list *api.List[T], items []O) {
			list.Items = nil
			for _, item := range items {
				list.Items = append(list.Items, *item)
			}
		})
}

// VolumeSnapshots implements api.Client.
func (a *fakeAPI) VolumeSnapshots(namespace string) api.SnapshotsClient {
	return fakeObjects[api.VolumeSnapshot](a, api.GroupVersion, namespace, api.ResourceSnapshots, api.KindSnapshot)
}

// VolumeSnapshotContents implements api.Client.
func (a *fakeAPI) VolumeSnapshotContents() api.ContentsClient {
	return fakeObjects[api.VolumeSnapshotContent](a, api.GroupVersion, "", api.ResourceContents, "VolumeSnapshotContent")
}

// VolumeSnapshotClasses implements api.Client.
func (a *fakeAPI) VolumeSnapshotClasses() api.ClassesClient {
	return fakeObjects[api.VolumeSnapshotClass](a, api.GroupVersion, "", api.ResourceClasses, "VolumeSnapshotClass")
}

// VolumeGroupSnapshots implements groupapi.Client.
func (a *fakeAPI) VolumeGroupSnapshots(namespace string) groupapi.GroupsClient {
	return fakeObjects[groupapi.VolumeGroupSnapshot](a, groupapi.GroupVersion, namespace, groupapi.ResourceGroups, groupapi.KindGroup)
}

// VolumeGroupSnapshotContents implements groupapi.Client.
func (a *fakeAPI) VolumeGroupSnapshotContents() groupapi.ContentsClient {
	return fakeObjects[groupapi.VolumeGroupSnapshotContent](a, groupapi.GroupVersion, "", groupapi.ResourceContents, groupapi.KindContent)
}

// VolumeGroupSnapshotClasses implements groupapi.Client.
func (a *fakeAPI) VolumeGroupSnapshotClasses() groupapi.ClassesClient {
	return fakeObjects[groupapi.VolumeGroupSnapshotClass](a, groupapi.GroupVersion, "", groupapi.ResourceClasses, "VolumeGroupSnapshotClass")
}

// wait waits until the VolumeSnapshot fits.
func (a *fakeAPI) wait(t *testing.T, name string, fits func(*api.VolumeSnapshot) bool) *api.VolumeSnapshot {
	t.Helper()
	var last *api.VolumeSnapshot
	require.Eventually(t, func() bool {
		found, err := a.VolumeSnapshots("ns").Get(context.WithoutCancel(t.Context()), name, metav1.GetOptions{})
		last = found
		return err == nil && fits(found)
	}, time.Minute, 5*time.Millisecond, "VolumeSnapshot %s", name)
	return last
}

func claim(name string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: phase},
	}
}

func volume(name string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name},
		Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "handle-" + name}},
		},
	}
}
