package volumebinding

import (
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// topic is an object whose change may end a wait; a volume's change counts as one
// of its claim. The key is namespace/name, or the name of what has no namespace.
type topic struct {
	kind kind
	key  string
}

type kind uint8

const (
	claimKind kind = iota
	podKind
	nodeKind
)

// waiters notifies waiting binders of changes of objects. It stores nothing about
// other objects. It is safe for concurrent use.
type waiters struct {
	mu      sync.Mutex
	byTopic map[topic]map[chan struct{}]struct{}
}

func newWaiters() *waiters {
	return &waiters{byTopic: map[topic]map[chan struct{}]struct{}{}}
}

// add returns a channel that gets a value after a change of any of topics, any
// number of changes since the last receive counting as one. The caller calls
// release when its wait is over.
func (w *waiters) add(topics []topic) (wake <-chan struct{}, release func()) {
	channel := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range topics {
		if w.byTopic[t] == nil {
			w.byTopic[t] = map[chan struct{}]struct{}{}
		}
		w.byTopic[t][channel] = struct{}{}
	}
	return channel, func() { w.remove(topics, channel) }
}

func (w *waiters) remove(topics []topic, channel chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range topics {
		delete(w.byTopic[t], channel)
		if len(w.byTopic[t]) == 0 {
			delete(w.byTopic, t)
		}
	}
}

func (w *waiters) changed(t topic) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for channel := range w.byTopic[t] {
		select {
		case channel <- struct{}{}:
		default: // an earlier change was not received yet
		}
	}
}

// changedObject takes an informer's object, or the tombstone of one.
func (w *waiters) changedObject(kind kind, object any) {
	// Informers hold API objects and tombstones alone, which all have keys.
	if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
		w.changed(topic{kind, key})
	}
}

// subscribe connects the informers' events with the waiters. An informer has changed
// its store when its handlers run, so a binder that reads after a notification sees
// the change.
func (w *waiters) subscribe(factory informers.SharedInformerFactory) error {
	core := factory.Core().V1()
	handlers := []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{core.PersistentVolumeClaims().Informer(), cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { w.changedObject(claimKind, object) },
			UpdateFunc: func(_, object any) { w.changedObject(claimKind, object) },
			DeleteFunc: func(object any) { w.changedObject(claimKind, object) },
		}},
		// A deleted volume makes its claim Lost, which is the claim's event.
		{core.PersistentVolumes().Informer(), cache.ResourceEventHandlerFuncs{
			AddFunc:    w.changedVolume,
			UpdateFunc: func(_, object any) { w.changedVolume(object) },
		}},
		{core.Pods().Informer(), cache.ResourceEventHandlerFuncs{
			DeleteFunc: func(object any) { w.changedObject(podKind, object) },
		}},
		{core.Nodes().Informer(), cache.ResourceEventHandlerFuncs{
			UpdateFunc: w.changedNode,
			DeleteFunc: func(object any) { w.changedObject(nodeKind, object) },
		}},
	}
	for _, h := range handlers {
		if _, err := h.informer.AddEventHandler(h.handler); err != nil {
			return err
		}
	}
	return nil
}

func (w *waiters) changedVolume(object any) {
	if volume, ok := object.(*corev1.PersistentVolume); ok && volume.Spec.ClaimRef != nil {
		w.changed(topic{claimKind, volume.Spec.ClaimRef.Namespace + "/" + volume.Spec.ClaimRef.Name})
	}
}

// changedNode ignores changes of a node's status, which are frequent.
func (w *waiters) changedNode(before, after any) {
	old, okOld := before.(*corev1.Node)
	node, okNew := after.(*corev1.Node)
	if okOld && okNew && !maps.Equal(old.Labels, node.Labels) {
		w.changedObject(nodeKind, node)
	}
}
