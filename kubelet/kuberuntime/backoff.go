package kuberuntime

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// InitialBackoff is the wait before a container's second restart; the first one is immediate.
	InitialBackoff = 10 * time.Second
	// MaxBackoff is the longest wait between two restarts, unless the configuration says less.
	MaxBackoff = 300 * time.Second
	// backoffReset is how long a container has to have run for its waits to begin anew.
	backoffReset = 600 * time.Second
)

// Backoff remembers how long crashing containers have to wait: 10, 20, 40, 80, 160, 300, 300… seconds after they
// ended. It lives in memory only, so a restarted kubelet begins every container's row anew. It is safe for
// concurrent use, and a nil Backoff lets nobody wait.
type Backoff struct {
	initial, limit time.Duration

	mu   sync.Mutex // guards pods
	pods map[types.UID]map[string]backoffEntry
}

type backoffEntry struct {
	delay   time.Duration
	updated time.Time
}

// NewBackoff makes a Backoff whose waits end at limit (0 means MaxBackoff). A limit below InitialBackoff lowers the
// first wait as well.
func NewBackoff(limit time.Duration) *Backoff {
	if limit <= 0 || limit > MaxBackoff {
		limit = MaxBackoff
	}
	return &Backoff{
		initial: min(InitialBackoff, limit),
		limit:   limit,
		pods:    make(map[types.UID]map[string]backoffEntry),
	}
}

// Due tells when the container that ended at finished may be started again, and how long the whole wait is. The zero
// time and 0 mean that it need not wait.
func (b *Backoff) Due(uid types.UID, key string, finished time.Time) (time.Time, time.Duration) {
	if b == nil {
		return time.Time{}, 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	entry, ok := b.pods[uid][key]
	if !ok || entry.expired(finished) {
		return time.Time{}, 0
	}
	return finished.Add(entry.delay), entry.delay
}

// Started notes that the container, which ended at finished, is started again now: the next wait is twice as long.
// A zero finished notes nothing.
func (b *Backoff) Started(uid types.UID, key string, finished, now time.Time) {
	if b == nil || finished.IsZero() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	entries := b.pods[uid]
	if entries == nil {
		entries = make(map[string]backoffEntry)
		b.pods[uid] = entries
	}
	entry, ok := entries[key]
	if !ok || entry.expired(finished) {
		entries[key] = backoffEntry{delay: b.initial, updated: now}
		return
	}
	entries[key] = backoffEntry{delay: min(2*entry.delay, b.limit), updated: now}
}

// Forget drops what is known of a Pod's containers. To be called when the Pod is gone.
func (b *Backoff) Forget(uid types.UID) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.pods, uid)
}

func (e backoffEntry) expired(finished time.Time) bool {
	return finished.Sub(e.updated) > backoffReset
}

// backoffKey names a container in its present form. A changed image or changed resources are another key: whoever
// repairs a container does not wait for the sins of the old one.
func backoffKey(pod *corev1.Pod, c *corev1.Container) string {
	resources, _ := json.Marshal(c.Resources) // plain data: cannot fail
	h := fnv.New64a()
	h.Write(resources)
	return fmt.Sprintf("%s_%s_%s_%s_%x_%x", pod.Namespace, pod.Name, pod.UID, c.Name, HashContainer(c), h.Sum64())
}
