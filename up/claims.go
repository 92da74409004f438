package up

import "sync"

// claimEvents passes what the attach/detach controller sees of claims on to the kubelet: a node's own identity may not
// watch them. Either may die and be started again. The zero value is ready; it is safe for concurrent use.
type claimEvents struct {
	mu   sync.RWMutex // guards all below; held for reading while somebody is told
	last int
	told map[int]func(namespace, name string)
}

// Subscribe implements volumemanager.ClaimSource.
func (e *claimEvents) Subscribe(changed func(namespace, name string)) (cancel func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.told == nil {
		e.told = make(map[int]func(namespace, name string))
	}
	e.last++
	id := e.last
	e.told[id] = changed
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.told, id)
	}
}

// tell tells all who have subscribed.
func (e *claimEvents) tell(namespace, name string) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, changed := range e.told {
		changed(namespace, name)
	}
}
