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
	// MaxBackoff is the longest wait between two restarts, unless the configuration sets a shorter one.
	MaxBackoff = 300 * time.Second
	// backoffReset is how long a container has to run for its backoff to start over.
	backoffReset = 600 * time.Second
)

// Backoff holds the crash-loop backoffs of containers: 10, 20, 40, 80, 160, 300, 300… seconds after they ended. It is in
// memory only, so after a restart of the kubelet every container starts over. It is safe for concurrent use; a nil
// Backoff never makes a container wait.
type Backoff struct {
	initial, limit time.Duration

	mu   sync.Mutex // guards pods
	pods map[types.UID]map[string]backoffEntry
}

type backoffEntry struct {
	delay   time.Duration
	updated time.Time
}

// NewBackoff returns a Backoff with the longest wait limit (0 means MaxBackoff). A limit below InitialBackoff shortens
// the first wait as well.
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

// Due returns when the container that ended at finished may be started again, and the length of the whole wait. The zero
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

// Started records that the container, which ended at finished, is started again now: its next wait is twice as long. A
// zero finished records nothing.
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

// Forget drops the backoffs of a Pod's containers. It is called when the Pod is gone.
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

// backoffKey identifies a container with its image and resources: after a change of either it does not wait for the
// crashes of the old one.
func backoffKey(pod *corev1.Pod, c *corev1.Container) string {
	resources, _ := json.Marshal(c.Resources) // plain data: cannot fail
	h := fnv.New64a()
	h.Write(resources)
	return fmt.Sprintf("%s_%s_%s_%s_%x_%x", pod.Namespace, pod.Name, pod.UID, c.Name, HashContainer(c), h.Sum64())
}
