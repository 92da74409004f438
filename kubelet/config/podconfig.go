package config

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"

	kubelettypes "github.com/berth-dev/berth/kubelet/types"
)

// PodConfig merges the updates of several sources into one channel. It is safe for concurrent use.
type PodConfig struct {
	updates chan kubelettypes.PodUpdate

	mu      sync.Mutex // guards below
	sources sets.Set[string]
	seen    sets.Set[string]
}

// NewPodConfig returns a PodConfig without sources.
func NewPodConfig() *PodConfig {
	return &PodConfig{updates: make(chan kubelettypes.PodUpdate), sources: sets.New[string](), seen: sets.New[string]()}
}

// Updates is the channel of all sources' updates, in each source's order.
func (c *PodConfig) Updates() <-chan kubelettypes.PodUpdate { return c.updates }

// Register adds a source. SeenAllSources waits for it.
func (c *PodConfig) Register(source string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sources.Insert(source)
}

// Send sends an update to the reader of Updates, and returns when it was received or ctx has ended.
func (c *PodConfig) Send(ctx context.Context, update kubelettypes.PodUpdate) error {
	select {
	case c.updates <- update:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// MarkSeen records that the source's update was handled, and reports whether that holds for all sources.
func (c *PodConfig) MarkSeen(source string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen.Insert(source)
	return c.seen.IsSuperset(c.sources)
}

// SeenAllSources reports whether an update of each source was handled.
func (c *PodConfig) SeenAllSources() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen.IsSuperset(c.sources)
}
