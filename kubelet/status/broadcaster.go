package status

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Event is a change of one Pod on the node.
type Event struct {
	UID types.UID
	// Pod is the Pod, which must not be modified; nil if it is removed.
	Pod *corev1.Pod
	// Status is the Pod's status as the kubelet knows it.
	Status corev1.PodStatus
	// Removed says that nothing of the Pod is left on the node; Status is empty then.
	Removed bool
}

// Broadcaster sends each Event to all subscribers. The zero value is ready for use; it is safe for concurrent use.
type Broadcaster struct {
	mu          sync.Mutex // guards all below
	subscribers []*subscriber
}

type subscriber struct{ fn func(Event) (done bool) }

// Subscribe calls fn with each later event, in the order of subscription, until the returned function is called. fn must
// not block, and may be called from several goroutines.
func (b *Broadcaster) Subscribe(fn func(Event)) (cancel func()) {
	return b.SubscribeUntil(func(event Event) bool {
		fn(event)
		return false
	})
}

// SubscribeUntil is Subscribe for a function that cancels its subscription by returning true.
func (b *Broadcaster) SubscribeUntil(fn func(Event) (done bool)) (cancel func()) {
	s := &subscriber{fn}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subscribers = append(slices.Clone(b.subscribers), s)
	return func() { b.remove(s) }
}

func (b *Broadcaster) remove(s *subscriber) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subscribers = slices.DeleteFunc(slices.Clone(b.subscribers), func(other *subscriber) bool { return other == s })
}

// Changed sends the event of a new status.
func (b *Broadcaster) Changed(pod *corev1.Pod, status corev1.PodStatus) {
	b.send(Event{UID: pod.UID, Pod: pod, Status: *status.DeepCopy()})
}

// Removed sends the event of a Pod of which nothing is left on the node.
func (b *Broadcaster) Removed(uid types.UID) { b.send(Event{UID: uid, Removed: true}) }

func (b *Broadcaster) send(event Event) {
	b.mu.Lock()
	subscribers := b.subscribers // never modified in place
	b.mu.Unlock()
	for _, s := range subscribers {
		if s.fn(event) {
			b.remove(s)
		}
	}
}
