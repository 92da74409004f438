package config

import "sync"

// SourcesReady tracks which sources of Pods have delivered all their Pods once. It is safe for concurrent use.
type SourcesReady struct {
	ready func()

	mu      sync.Mutex // guards pending
	pending map[string]bool
}

// NewSourcesReady returns a SourcesReady of the named sources. It calls ready once, when MarkReady was called for each of
// them; never if there are none.
func NewSourcesReady(ready func(), sources ...string) *SourcesReady {
	r := &SourcesReady{ready: ready, pending: map[string]bool{}}
	for _, source := range sources {
		r.pending[source] = true
	}
	return r
}

// MarkReady notes that a source has delivered all its Pods.
func (r *SourcesReady) MarkReady(source string) {
	r.mu.Lock()
	was := r.pending[source]
	delete(r.pending, source)
	all := was && len(r.pending) == 0
	r.mu.Unlock()
	if all {
		r.ready()
	}
}
