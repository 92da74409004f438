package provision

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
)

// queueStore saves volumes in the background until it succeeds.
type queueStore struct {
	client  kubernetes.Interface
	limiter workqueue.RateLimiter
	done    chan struct{}
	once    sync.Once

	mu      sync.Mutex // guards all below
	unsaved map[string]*corev1.PersistentVolume
	// queue is there while Run runs; what is unsaved before that is queued when it begins.
	queue workqueue.TypedDelayingInterface[string]
}

var _ VolumeStore = (*queueStore)(nil)

func (s *queueStore) StoreVolume(_ *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume) error {
	if err := createVolume(wait.ContextForChannel(s.done), s.client, volume); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unsaved[volume.Name] = volume
		if s.queue != nil {
			s.queue.Add(volume.Name)
		}
	}
	return nil
}

func (s *queueStore) Run(ctx context.Context, threadiness int) {
	queue := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Name: "unsaved"})
	s.mu.Lock()
	s.queue = queue
	for name := range s.unsaved {
		queue.Add(name)
	}
	s.mu.Unlock()
	var workers sync.WaitGroup
	for range max(threadiness, 1) {
		workers.Go(func() { work(ctx, queue, s.save) })
	}
	<-ctx.Done()
	queue.ShutDown()
	workers.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = nil
	s.once.Do(func() { close(s.done) })
}

func (s *queueStore) save(ctx context.Context, name string) {
	s.mu.Lock()
	volume := s.unsaved[name]
	s.mu.Unlock()
	if volume == nil || ctx.Err() != nil {
		return
	}
	if err := createVolume(ctx, s.client, volume); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.queue != nil {
			s.queue.AddAfter(name, s.limiter.When(name))
		}
		return
	}
	s.limiter.Forget(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.unsaved, name)
}
