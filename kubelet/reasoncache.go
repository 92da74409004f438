package kubelet

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"

	"github.com/berth-dev/berth/kubelet/container"
)

// reasonsKept is how many failures a ReasonCache keeps.
const reasonsKept = 1000

// ReasonCache keeps the last failure to start of each container, in an LRU cache. It is safe for concurrent use.
type ReasonCache struct {
	cache *lru.Cache
}

// startFailure is the reason why a container could not be started.
type startFailure struct {
	err     error
	message string
}

// NewReasonCache returns an empty ReasonCache.
func NewReasonCache() *ReasonCache { return &ReasonCache{cache: lru.New(reasonsKept)} }

func reasonKey(uid types.UID, name string) string { return fmt.Sprintf("%s_%s", uid, name) }

// Update takes the result of a sync: it stores the failed start of a container, and removes the failure of one that has
// started.
func (c *ReasonCache) Update(uid types.UID, result container.PodSyncResult) {
	for _, step := range result.SyncResults {
		name, ok := step.Target.(string)
		if step.Action != container.StartContainer || !ok {
			continue
		}
		if step.Error == nil {
			c.Remove(uid, name)
			continue
		}
		c.cache.Add(reasonKey(uid, name), startFailure{step.Error, step.Message})
	}
}

// Remove removes a container's failure.
func (c *ReasonCache) Remove(uid types.UID, name string) { c.cache.Remove(reasonKey(uid, name)) }

// Get returns a container's failure: its reason, what it says, and whether there is one.
//
//nolint:staticcheck,revive // the error is a value here, at the documented position
func (c *ReasonCache) Get(uid types.UID, name string) (error, string, bool) {
	value, ok := c.cache.Get(reasonKey(uid, name))
	if !ok {
		return nil, "", false
	}
	failure, ok := value.(startFailure)
	if !ok {
		return nil, "", false
	}
	return failure.err, failure.message, true
}
