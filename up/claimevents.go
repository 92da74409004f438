package up

import "sync"

// claimEvents forwards claim events from the attach/detach controller to the kubelet, because a node's own identity may
// not watch claims. Either may be restarted at any time. The zero value is ready; it is safe for concurrent use.
type claimEvents struct {
	mu          sync.RWMutex // guards all below; held for reading while subscribers are notified
	lastID      int
	subscribers map[int]func(namespace, name string)
}

// Subscribe implements volumemanager.ClaimSource.
func (e *claimEvents) Subscribe(changed func(namespace, name string)) (cancel func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.subscribers == nil {
		e.subscribers = make(map[int]func(namespace, name string))
	}
	e.lastID++
	id := e.lastID
	e.subscribers[id] = changed
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.subscribers, id)
	}
}

// notify calls all subscribers.
func (e *claimEvents) notify(namespace, name string) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, changed := range e.subscribers {
		changed(namespace, name)
	}
}
