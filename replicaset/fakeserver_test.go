package replicaset_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// fakeServer is an API server for Pods and ReplicaSets in memory: with UIDs, resource versions, conflicts, preconditions,
// graceful deletion, and watches that lag behind. It answers the requests of a fake clientset.
type fakeServer struct {
	client *fake.Clientset
	// lag is how late a watcher hears of an event.
	lag func() time.Duration
	// fault may fail a request: before is returned without carrying it out, after although it was carried out.
	fault func(verb, resource string) (before, after error)
	// wrote is called for each Pod creation and deletion through the client.
	wrote func(verb string, pod *corev1.Pod)
	// old makes it a server that does not know status.terminatingReplicas.
	old bool

	mu       sync.Mutex // guards all below
	version  int64
	objects  map[string]map[string]object // by resource and namespace/name
	history  map[string][]event
	changed  chan struct{} // closed and replaced at each event
	requests map[string]int
	events   []*corev1.Event
}

type object interface {
	runtime.Object
	metav1.Object
}

type event struct {
	watch.Event
	version int64
	at      time.Time
}

const (
	pods        = "pods"
	replicasets = "replicasets"
)

func newFakeServer() *fakeServer {
	a := &fakeServer{
		client:   fake.NewClientset(),
		lag:      func() time.Duration { return 0 },
		fault:    func(string, string) (error, error) { return nil, nil },
		wrote:    func(string, *corev1.Pod) {},
		objects:  map[string]map[string]object{pods: {}, replicasets: {}},
		history:  map[string][]event{},
		changed:  make(chan struct{}),
		requests: map[string]int{},
	}
	a.client.PrependReactor("*", "*", a.react)
	a.client.PrependWatchReactor("*", a.watch)
	return a
}

func key(namespace, name string) string { return namespace + "/" + name }

// react answers one request.
func (a *fakeServer) react(action clienttesting.Action) (bool, runtime.Object, error) {
	verb, resource := action.GetVerb(), action.GetResource().Resource
	if _, known := a.objects[resource]; !known {
		a.mu.Lock()
		defer a.mu.Unlock()
		if create, ok := action.(clienttesting.CreateActionImpl); ok && resource == "events" {
			a.events = append(a.events, create.Object.(*corev1.Event))
		}
		return true, &corev1.Event{}, nil
	}
	before, after := a.fault(verb, resource)
	if before != nil {
		return true, nil, before
	}
	a.mu.Lock()
	a.requests[verb+" "+resource]++
	result, err := a.serve(action)
	a.mu.Unlock()
	if pod, ok := result.(*corev1.Pod); ok && err == nil && (verb == "create" || verb == "delete") {
		a.wrote(verb, pod)
	}
	if after != nil {
		return true, nil, after
	}
	return true, result, err
}

// serve carries a request out. The caller holds mu.
func (a *fakeServer) serve(action clienttesting.Action) (runtime.Object, error) {
	resource := action.GetResource().Resource
	group := schema.GroupResource{Resource: resource}
	switch action := action.(type) {
	case clienttesting.CreateActionImpl:
		obj := action.Object.DeepCopyObject().(object)
		obj.SetNamespace(action.Namespace)
		if _, exists := a.objects[resource][key(action.Namespace, obj.GetName())]; exists {
			return nil, apierrors.NewAlreadyExists(group, obj.GetName())
		}
		obj.SetUID(types.UID(fmt.Sprintf("uid-%d", a.version+1)))
		obj.SetCreationTimestamp(metav1.Now())
		a.store(resource, watch.Added, obj)
		return obj.DeepCopyObject(), nil
	case clienttesting.ListActionImpl:
		return a.list(action), nil
	}
	name, namespace := nameOf(action), action.GetNamespace()
	current, exists := a.objects[resource][key(namespace, name)]
	if !exists {
		return nil, apierrors.NewNotFound(group, name)
	}
	switch action := action.(type) {
	case clienttesting.GetActionImpl:
		return current.DeepCopyObject(), nil
	case clienttesting.UpdateActionImpl:
		obj := action.Object.DeepCopyObject().(*appsv1.ReplicaSet)
		if obj.ResourceVersion != current.GetResourceVersion() {
			return nil, apierrors.NewConflict(group, name, fmt.Errorf("version is %s", current.GetResourceVersion()))
		}
		fresh := current.DeepCopyObject().(*appsv1.ReplicaSet)
		fresh.Status = obj.Status
		if a.old {
			fresh.Status.TerminatingReplicas = nil
		}
		a.store(resource, watch.Modified, fresh)
		return fresh.DeepCopyObject(), nil
	case clienttesting.PatchActionImpl:
		return a.patch(current.(*corev1.Pod), action.Patch)
	case clienttesting.DeleteActionImpl:
		want := action.DeleteOptions.Preconditions
		if want != nil && want.UID != nil && *want.UID != current.GetUID() {
			return nil, apierrors.NewConflict(group, name, fmt.Errorf("uid is %s", current.GetUID()))
		}
		return a.remove(resource, current), nil
	}
	return nil, fmt.Errorf("no such request: %#v", action)
}

func nameOf(action clienttesting.Action) string {
	switch action := action.(type) {
	case clienttesting.GetActionImpl:
		return action.Name
	case clienttesting.PatchActionImpl:
		return action.Name
	case clienttesting.DeleteActionImpl:
		return action.Name
	case clienttesting.UpdateActionImpl:
		return action.Object.(metav1.Object).GetName()
	}
	return ""
}

func (a *fakeServer) patch(pod *corev1.Pod, patch []byte) (runtime.Object, error) {
	var meta struct{ Metadata struct{ UID types.UID } }
	if err := json.Unmarshal(patch, &meta); err != nil {
		return nil, err
	}
	if meta.Metadata.UID != pod.UID {
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, pod.Name, nil)
	}
	before, _ := json.Marshal(pod)
	after, err := strategicpatch.StrategicMergePatch(before, patch, corev1.Pod{})
	if err != nil {
		return nil, err
	}
	var patched corev1.Pod
	if err := json.Unmarshal(after, &patched); err != nil {
		return nil, err
	}
	a.store(pods, watch.Modified, &patched)
	return patched.DeepCopyObject(), nil
}

// remove deletes an object, or marks it as terminating if it is a Pod on a node. The caller holds mu.
func (a *fakeServer) remove(resource string, current object) runtime.Object {
	obj := current.DeepCopyObject().(object)
	if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" && pod.Status.Phase != corev1.PodFailed {
		if pod.DeletionTimestamp == nil {
			now := metav1.Now()
			pod.DeletionTimestamp = &now
			a.store(resource, watch.Modified, pod)
		}
		return pod
	}
	a.store(resource, watch.Deleted, obj)
	return obj
}

// store stores an object and notifies the watchers. The caller holds mu.
func (a *fakeServer) store(resource string, change watch.EventType, obj object) {
	a.version++
	obj.SetResourceVersion(strconv.FormatInt(a.version, 10))
	if change == watch.Deleted {
		delete(a.objects[resource], key(obj.GetNamespace(), obj.GetName()))
	} else {
		a.objects[resource][key(obj.GetNamespace(), obj.GetName())] = obj
	}
	a.history[resource] = append(a.history[resource], event{
		Event: watch.Event{Type: change, Object: obj.DeepCopyObject()}, version: a.version, at: time.Now(),
	})
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *fakeServer) list(action clienttesting.ListActionImpl) runtime.Object {
	meta := metav1.ListMeta{ResourceVersion: strconv.FormatInt(a.version, 10)}
	wanted, single := action.ListRestrictions.Fields.RequiresExactMatch("metadata.name")
	listed := func(obj object) bool {
		return !single || (obj.GetName() == wanted && obj.GetNamespace() == action.Namespace)
	}
	if action.Resource.Resource == replicasets {
		list := &appsv1.ReplicaSetList{ListMeta: meta}
		for _, name := range slices.Sorted(maps.Keys(a.objects[replicasets])) {
			if rs := a.objects[replicasets][name].DeepCopyObject().(*appsv1.ReplicaSet); listed(rs) {
				list.Items = append(list.Items, *rs)
			}
		}
		return list
	}
	list := &corev1.PodList{ListMeta: meta}
	for _, name := range slices.Sorted(maps.Keys(a.objects[pods])) {
		pod := a.objects[pods][name].DeepCopyObject().(*corev1.Pod)
		if listed(pod) {
			list.Items = append(list.Items, *pod)
		}
	}
	return list
}

// watch serves one watcher, with its own lag, until it is stopped.
func (a *fakeServer) watch(action clienttesting.Action) (bool, watch.Interface, error) {
	resource := action.GetResource().Resource
	from, err := strconv.ParseInt(action.(clienttesting.WatchActionImpl).ListOptions.ResourceVersion, 10, 64)
	if err != nil {
		return true, nil, err
	}
	events := make(chan watch.Event)
	stopped := watch.NewProxyWatcher(events)
	go func() {
		defer close(events)
		for {
			a.mu.Lock()
			history, changed := a.history[resource], a.changed
			a.mu.Unlock()
			at, _ := slices.BinarySearchFunc(history, from+1, func(e event, version int64) int {
				return int(e.version - version)
			})
			for _, e := range history[at:] {
				if !wait(stopped.StopChan(), time.Until(e.at.Add(a.lag()))) {
					return
				}
				select {
				case events <- watch.Event{Type: e.Type, Object: e.Object.DeepCopyObject()}:
					from = e.version
				case <-stopped.StopChan():
					return
				}
			}
			select {
			case <-changed:
			case <-stopped.StopChan():
				return
			}
		}
	}()
	return true, stopped, nil
}

// wait sleeps inside a synctest bubble; false if stop came first.
func wait(stop <-chan struct{}, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-stop:
		return false
	}
}

// change edits an object behind the controller's back, as a user or a kubelet does. It returns false if there is none.
func change[T object](a *fakeServer, resource, namespace, name string, edit func(T)) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	current, ok := a.objects[resource][key(namespace, name)]
	if !ok {
		return false
	}
	obj := current.DeepCopyObject().(T)
	edit(obj)
	a.store(resource, watch.Modified, obj)
	return true
}

// put creates an object behind the controller's back.
func (a *fakeServer) put(resource string, obj object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	obj = obj.DeepCopyObject().(object)
	obj.SetUID(types.UID(fmt.Sprintf("uid-%d", a.version+1)))
	obj.SetCreationTimestamp(metav1.Now())
	a.store(resource, watch.Added, obj)
}

// erase deletes an object behind the controller's back, at once if force.
func (a *fakeServer) erase(resource, namespace, name string, force bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if current, ok := a.objects[resource][key(namespace, name)]; ok && force {
		a.store(resource, watch.Deleted, current.DeepCopyObject().(object))
	} else if ok {
		a.remove(resource, current)
	}
}

// podsOf returns the Pods that a ReplicaSet controls, sorted by name.
func (a *fakeServer) podsOf(rs types.UID) []*corev1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	var found []*corev1.Pod
	for _, obj := range a.objects[pods] {
		if ref := metav1.GetControllerOf(obj); ref != nil && ref.UID == rs {
			found = append(found, obj.(*corev1.Pod))
		}
	}
	slices.SortFunc(found, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return found
}

func (a *fakeServer) replicaSet(namespace, name string) *appsv1.ReplicaSet {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.objects[replicasets][key(namespace, name)].DeepCopyObject().(*appsv1.ReplicaSet)
}
