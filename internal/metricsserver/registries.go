package metricsserver

import (
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Registries has a registry of each component, and gathers from all of them. Components may have metrics of the same name
// if their labels differ. The zero value is empty. It is safe for concurrent use.
type Registries struct {
	mu         sync.Mutex // guards registries
	registries map[string]*prometheus.Registry
}

var _ prometheus.Gatherer = (*Registries)(nil)

// New returns an empty registry for the component. It replaces the one that the component had before it was restarted.
func (r *Registries) New(component string) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.registries == nil {
		r.registries = make(map[string]*prometheus.Registry)
	}
	r.registries[component] = registry
	return registry
}

// Gather implements prometheus.Gatherer.
func (r *Registries) Gather() ([]*dto.MetricFamily, error) {
	r.mu.Lock()
	var all prometheus.Gatherers
	for _, component := range slices.Sorted(maps.Keys(r.registries)) {
		all = append(all, r.registries[component])
	}
	r.mu.Unlock()
	return all.Gather()
}
