package subscribers

import (
	"slices"
	"sync"
)

// Set is a set of functions that are called with each value that is sent. The zero value is empty and ready; a Set is safe
// for concurrent use and must not be copied.
type Set[T any] struct {
	mu      sync.Mutex // guards members
	members []*func(T) // replaced by each change, so that Send calls without the lock
}

// Add makes later calls of Send call fn, in the order of the Adds. fn runs in the goroutine of the sender and must return at
// once; it may call Add and the returned functions. The returned function removes fn; a call may still be running.
func (s *Set[T]) Add(fn func(T)) (remove func()) {
	member := &fn
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members = append(slices.Clip(s.members), member)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.members = slices.DeleteFunc(slices.Clone(s.members), func(m *func(T)) bool { return m == member })
	}
}

// Send calls each function of the set with the values, in their order. A function that is added or removed meanwhile may
// or may not be called. The caller must not hold a lock that one of the functions takes.
func (s *Set[T]) Send(values ...T) {
	if len(values) == 0 {
		return
	}
	s.mu.Lock()
	members := s.members
	s.mu.Unlock()
	for _, fn := range members {
		for _, value := range values {
			(*fn)(value)
		}
	}
}
