package lazyqueue

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// Config are the values of a Queue.
type Config struct {
	// Name is the queue's name in metrics.
	Name string
	// InitialDelay and MaxDelay bound the delay of AddRateLimited, which doubles with each call for one key.
	InitialDelay, MaxDelay time.Duration
	Clock                  clock.WithTicker
}

// Queue is a rate limiting work queue. Keys that are added before Start wait until then. It is safe for concurrent use.
type Queue[K comparable] struct {
	config Config

	mu    sync.Mutex // guards below
	queue workqueue.TypedRateLimitingInterface[K]
	early map[K]time.Duration // delays of the keys added before Start
	ended bool                // ShutDown was called
}

// New returns a Queue that runs nothing yet.
func New[K comparable](config Config) *Queue[K] {
	return &Queue[K]{config: config, early: map[K]time.Duration{}}
}

// Start creates the queue with the keys that were added before. It is called once, before Get.
func (q *Queue[K]) Start() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		return
	}
	q.queue = workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[K](q.config.InitialDelay, q.config.MaxDelay),
		workqueue.TypedRateLimitingQueueConfig[K]{Name: q.config.Name, Clock: q.config.Clock})
	for key, delay := range q.early {
		q.queue.AddAfter(key, delay)
	}
	q.early = nil
}

// started returns the queue, nil before Start. Then it keeps the key for Start, with its shortest delay.
func (q *Queue[K]) started(key K, delay time.Duration) workqueue.TypedRateLimitingInterface[K] {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.queue == nil && !q.ended {
		if known, ok := q.early[key]; ok {
			delay = min(delay, known)
		}
		q.early[key] = delay
	}
	return q.queue
}

// Add adds a key.
func (q *Queue[K]) Add(key K) {
	if queue := q.started(key, 0); queue != nil {
		queue.Add(key)
	}
}

// AddAfter adds a key after the delay, which begins with Start at the earliest.
func (q *Queue[K]) AddAfter(key K, delay time.Duration) {
	if queue := q.started(key, delay); queue != nil {
		queue.AddAfter(key, delay)
	}
}

// AddRateLimited adds a key that failed, after its delay.
func (q *Queue[K]) AddRateLimited(key K) {
	if queue := q.started(key, 0); queue != nil {
		queue.AddRateLimited(key)
	}
}

// Forget resets the delay of a key.
func (q *Queue[K]) Forget(key K) {
	if queue := q.running(); queue != nil {
		queue.Forget(key)
	}
}

// Get waits for the next key. quit says that the queue was shut down. Each key of Get is passed to Done.
func (q *Queue[K]) Get() (key K, quit bool) {
	queue := q.running()
	if queue == nil {
		return key, true
	}
	return queue.Get()
}

// Done says that a key of Get was processed.
func (q *Queue[K]) Done(key K) {
	if queue := q.running(); queue != nil {
		queue.Done(key)
	}
}

// ShutDown ends the queue: Get returns the keys that are left, then quit.
func (q *Queue[K]) ShutDown() {
	q.mu.Lock()
	q.ended = true
	queue := q.queue
	q.mu.Unlock()
	if queue != nil {
		queue.ShutDown()
	}
}

func (q *Queue[K]) running() workqueue.TypedRateLimitingInterface[K] {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.queue
}
