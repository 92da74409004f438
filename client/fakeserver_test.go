package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/client"
)

var resource = corev1.Resource("configmaps")

// fakeServer is an API server for ConfigMaps in memory, that remembers the whole history of each key and whose watches lag.
type fakeServer struct {
	lag func() time.Duration
	// fault fails a request: before is returned without carrying it out, after although it was.
	fault func(verb string) (before, after error)

	mu       sync.Mutex // guards all below
	version  int64
	objects  map[string]*corev1.ConfigMap
	history  map[string][]revision
	events   []delayedEvent
	changed  chan struct{}
	breaks   chan struct{} // closed and replaced to break all watches
	requests map[string]int
}

// revision is the state of a key from a version on; nil is absent.
type revision struct {
	version int64
	obj     *corev1.ConfigMap
}

type delayedEvent struct {
	watch.Event
	version int64
	at      time.Time
}

func newFakeServer() *fakeServer {
	return &fakeServer{
		lag:     func() time.Duration { return 0 },
		fault:   func(string) (error, error) { return nil, nil },
		objects: map[string]*corev1.ConfigMap{}, history: map[string][]revision{}, requests: map[string]int{},
		changed: make(chan struct{}), breaks: make(chan struct{}),
	}
}

// store stores the object, or removes it, and notifies the watchers. The caller holds mu.
func (s *fakeServer) store(change watch.EventType, obj *corev1.ConfigMap) *corev1.ConfigMap {
	s.version++
	obj = obj.DeepCopy()
	obj.ResourceVersion = strconv.FormatInt(s.version, 10)
	key := obj.Namespace + "/" + obj.Name
	if change == watch.Deleted {
		delete(s.objects, key)
		s.history[key] = append(s.history[key], revision{version: s.version})
	} else {
		s.objects[key] = obj
		s.history[key] = append(s.history[key], revision{s.version, obj})
	}
	s.events = append(s.events, delayedEvent{watch.Event{Type: change, Object: obj}, s.version, time.Now()})
	close(s.changed)
	s.changed = make(chan struct{})
	return obj.DeepCopy()
}

// call wraps one request with its faults.
func call[R any](s *fakeServer, verb string, serve func() (R, error)) (R, error) {
	before, after := s.fault(verb)
	var zero R
	if before != nil {
		return zero, before
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[verb]++
	result, err := serve()
	if after != nil {
		return zero, after
	}
	return result, err
}

// namespaced is the client of one namespace, with the methods that a typed client of client-go has.
type namespaced struct {
	*fakeServer
	namespace string
}

var _ client.API[*corev1.ConfigMap, *corev1.ConfigMapList] = (*namespaced)(nil)

func (s *fakeServer) in(namespace string) *namespaced { return &namespaced{s, namespace} }

func (n *namespaced) Create(
	_ context.Context, obj *corev1.ConfigMap, _ metav1.CreateOptions,
) (*corev1.ConfigMap, error) {
	return call(n.fakeServer, "create", func() (*corev1.ConfigMap, error) {
		obj := obj.DeepCopy()
		if obj.Name == "" {
			obj.Name = fmt.Sprint(obj.GenerateName, n.version)
		}
		if _, exists := n.objects[n.namespace+"/"+obj.Name]; exists {
			return nil, apierrors.NewAlreadyExists(resource, obj.Name)
		}
		obj.UID = types.UID(fmt.Sprint("uid-", n.version))
		return n.store(watch.Added, obj), nil
	})
}

func (n *namespaced) Update(
	_ context.Context, obj *corev1.ConfigMap, _ metav1.UpdateOptions,
) (*corev1.ConfigMap, error) {
	return call(n.fakeServer, "update", func() (*corev1.ConfigMap, error) {
		current, exists := n.objects[n.namespace+"/"+obj.Name]
		switch {
		case !exists:
			return nil, apierrors.NewNotFound(resource, obj.Name)
		case obj.ResourceVersion != "" && obj.ResourceVersion != current.ResourceVersion:
			return nil, apierrors.NewConflict(resource, obj.Name, errors.New("changed"))
		}
		return n.replace(current, obj), nil
	})
}

// replace stores an update; one that takes the last finalizer off a terminating object removes it. Holding mu.
func (n *namespaced) replace(current, obj *corev1.ConfigMap) *corev1.ConfigMap {
	obj = obj.DeepCopy()
	obj.UID, obj.DeletionTimestamp = current.UID, current.DeletionTimestamp
	if obj.DeletionTimestamp != nil && len(obj.Finalizers) == 0 {
		n.store(watch.Deleted, obj)
		return obj // as the real server answers: the object without a version of its end
	}
	return n.store(watch.Modified, obj)
}

func (n *namespaced) Patch(
	_ context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string,
) (*corev1.ConfigMap, error) {
	return call(n.fakeServer, "patch", func() (*corev1.ConfigMap, error) {
		current, exists := n.objects[n.namespace+"/"+name]
		if !exists {
			return nil, apierrors.NewNotFound(resource, name)
		}
		obj := current.DeepCopy()
		obj.Data = map[string]string{"patched": string(data)}
		return n.replace(current, obj), nil
	})
}

// remove deletes an object or marks it as terminating if it has finalizers. The caller holds mu.
func (s *fakeServer) remove(current *corev1.ConfigMap) {
	if len(current.Finalizers) == 0 {
		s.store(watch.Deleted, current)
	} else if current.DeletionTimestamp == nil {
		obj := current.DeepCopy()
		now := metav1.Now()
		obj.DeletionTimestamp = &now
		s.store(watch.Modified, obj)
	}
}

func (n *namespaced) Delete(_ context.Context, name string, _ metav1.DeleteOptions) error {
	_, err := call(n.fakeServer, "delete", func() (any, error) {
		current, exists := n.objects[n.namespace+"/"+name]
		if !exists {
			return nil, apierrors.NewNotFound(resource, name)
		}
		n.remove(current)
		return nil, nil
	})
	return err
}

func (n *namespaced) DeleteCollection(_ context.Context, _ metav1.DeleteOptions, list metav1.ListOptions) error {
	selector, err := labels.Parse(list.LabelSelector)
	if err != nil {
		return err
	}
	_, err = call(n.fakeServer, "deletecollection", func() (any, error) {
		for _, obj := range n.objects {
			if obj.Namespace == n.namespace && selector.Matches(labels.Set(obj.Labels)) {
				n.remove(obj)
			}
		}
		return nil, nil
	})
	return err
}

func (n *namespaced) List(_ context.Context, options metav1.ListOptions) (*corev1.ConfigMapList, error) {
	selector, err := fields.ParseSelector(options.FieldSelector)
	if err != nil {
		return nil, err
	}
	return call(n.fakeServer, "list", func() (*corev1.ConfigMapList, error) {
		list := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatInt(n.version, 10)}}
		for _, obj := range n.objects {
			if strings.HasPrefix(obj.Namespace, n.namespace) && selector.Matches(fields.Set{"metadata.name": obj.Name}) {
				list.Items = append(list.Items, *obj.DeepCopy())
			}
		}
		return list, nil
	})
}

// informer makes an informer of the objects that match, with the server's lag. A change that lets an object leave the
// selection arrives as its deletion, as from a real server.
func (s *fakeServer) informer(matches func(*corev1.ConfigMap) bool) cache.SharedIndexInformer {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			list := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatInt(s.version, 10)}}
			for _, obj := range s.objects {
				if matches(obj) {
					list.Items = append(list.Items, *obj.DeepCopy())
				}
			}
			return list, nil
		},
		WatchFuncWithContext: func(_ context.Context, options metav1.ListOptions) (watch.Interface, error) {
			from, err := strconv.ParseInt(options.ResourceVersion, 10, 64)
			if err != nil {
				return nil, err
			}
			out := make(chan watch.Event)
			proxy := watch.NewProxyWatcher(out)
			go s.serve(out, proxy.StopChan(), from, matches)
			return proxy, nil
		},
	}
	return cache.NewSharedIndexInformer(unsupported{lw}, &corev1.ConfigMap{}, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc, "color": byColor})
}

// unsupported makes the reflector list instead of stream.
type unsupported struct{ *cache.ListWatch }

func (unsupported) IsWatchListSemanticsUnSupported() bool { return true }

func byColor(obj any) ([]string, error) {
	return []string{obj.(*corev1.ConfigMap).Labels["color"]}, nil
}

func (s *fakeServer) serve(out chan watch.Event, stop <-chan struct{}, from int64, matches func(*corev1.ConfigMap) bool) {
	defer close(out)
	s.mu.Lock()
	breaks := s.breaks
	s.mu.Unlock()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		s.mu.Lock()
		events, changed := s.events, s.changed
		s.mu.Unlock()
		at, _ := slices.BinarySearchFunc(events, from+1, func(e delayedEvent, version int64) int { return int(e.version - version) })
		for _, e := range events[at:] {
			from = e.version
			pause.Reset(max(0, time.Until(e.at.Add(s.lag()))))
			select {
			case <-pause.C:
			case <-breaks:
				return
			case <-stop:
				return
			}
			event := e.Event
			if obj := e.Object.(*corev1.ConfigMap); !matches(obj) {
				event.Type = watch.Deleted
			}
			select {
			case out <- watch.Event{Type: event.Type, Object: event.Object.DeepCopyObject()}:
			case <-stop:
				return
			}
		}
		select {
		case <-changed:
		case <-breaks:
			return
		case <-stop:
			return
		}
	}
}

// breakWatches ends all watches; what they had not delivered is only to be had by a new watch or list.
func (s *fakeServer) breakWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.breaks)
	s.breaks = make(chan struct{})
}
