package provision

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
)

// VolumeStore saves PersistentVolumes to the API server. The controller saves its volumes by itself, with the policies of
// these stores but without blocking a worker; the stores are for code that saves volumes without a controller.
type VolumeStore interface {
	// StoreVolume saves the volume. If it returns nil, the volume is saved or will be saved in the background; otherwise it
	// is not saved and has to be provisioned again. Saving cannot be cancelled: if the claim is deleted, the volume is saved
	// and then deleted as usual.
	StoreVolume(claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume) error
	// Run saves volumes in the background, with threadiness workers, until the context ends. It may be called once.
	Run(ctx context.Context, threadiness int)
}

// NewBackoffStore returns a VolumeStore whose StoreVolume tries backoff.Steps times and blocks meanwhile. If the volume
// cannot be saved, the controller's provisioner deletes it, with the same backoff, and StoreVolume returns the error. The
// recorder may be nil; without a controller, the volume is not deleted.
func NewBackoffStore(
	client kubernetes.Interface, eventRecorder record.EventRecorder, backoff *wait.Backoff, ctrl *ProvisionController,
) VolumeStore {
	store := &backoffStore{client: client, events: eventRecorder, ctrl: ctrl, clock: clock.RealClock{},
		ended: make(chan struct{})}
	if backoff != nil {
		store.backoff = *backoff
	} else {
		store.backoff = wait.Backoff{Duration: DefaultCreateProvisionedPVInterval, Factor: 1,
			Steps: DefaultCreateProvisionedPVRetryCount}
	}
	if eventRecorder == nil {
		store.events = &record.FakeRecorder{}
	}
	if ctrl != nil {
		store.clock = ctrl.settings.clock
	}
	return store
}

type backoffStore struct {
	client  kubernetes.Interface
	events  record.EventRecorder
	backoff wait.Backoff
	ctrl    *ProvisionController
	clock   clock.WithTicker
	once    sync.Once
	ended   chan struct{} // closed when Run ends: blocked StoreVolume calls give up
}

var _ VolumeStore = (*backoffStore)(nil)

func (s *backoffStore) Run(ctx context.Context, _ int) {
	<-ctx.Done()
	s.once.Do(func() { close(s.ended) })
}

func (s *backoffStore) StoreVolume(claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume) error {
	ctx := wait.ContextForChannel(s.ended)
	err := s.try(func() error { return createVolume(ctx, s.client, volume) })
	if err == nil {
		s.events.Event(claim, corev1.EventTypeNormal, reasonProvisioningOK, "Successfully provisioned volume "+volume.Name)
		return nil
	}
	failure := fmt.Errorf("save volume %q: %w", volume.Name, err)
	found, findErr := findVolume(ctx, s.client, volume)
	switch {
	case found && findErr == nil:
		return nil // a response was lost
	case found, ctx.Err() != nil:
		return failure
	}
	s.events.Event(claim, corev1.EventTypeWarning, reasonProvisioningFailed, fmt.Sprintf(
		"Error creating provisioned PV object for claim %s/%s: %v. Deleting the volume.", claim.Namespace, claim.Name, err))
	if err := s.try(func() error { return s.clean(ctx, volume) }); err != nil {
		s.events.Event(claim, corev1.EventTypeWarning, reasonCleanupFailed, fmt.Sprintf(
			"Error cleaning provisioned volume for claim %s/%s: %v. Please delete manually.", claim.Namespace, claim.Name, err))
	}
	return failure
}

func (s *backoffStore) clean(ctx context.Context, volume *corev1.PersistentVolume) error {
	if s.ctrl == nil {
		return fmt.Errorf("delete volume %q: the store has no controller", volume.Name)
	}
	err := (&engine{provisioner: s.ctrl.provisioner}).callDelete(ctx, volume)
	var ignored *IgnoredError
	if errors.As(err, &ignored) {
		return nil
	}
	return err
}

// try calls f until it succeeds, at most backoff.Steps times, and returns the last error.
func (s *backoffStore) try(f func() error) error {
	backoff := s.backoff
	for tries := 1; ; tries++ {
		err := f()
		if err == nil || tries >= s.backoff.Steps {
			return err
		}
		timer := s.clock.NewTimer(backoff.Step())
		select {
		case <-timer.C():
		case <-s.ended:
			timer.Stop()
			return err
		}
	}
}

// NewVolumeStoreQueue returns a VolumeStore that tries once and, if that fails, retries in the background with the delays of
// the limiter until the volume is saved. StoreVolume always returns nil. Volumes that are not saved when the process ends
// are lost; the controller's own way of saving does not lose them.
func NewVolumeStoreQueue(client kubernetes.Interface, limiter workqueue.RateLimiter) VolumeStore {
	return &queueStore{client: client, limiter: limiter, unsaved: map[string]*corev1.PersistentVolume{},
		done: make(chan struct{})}
}

// queueStore saves volumes in the background until it succeeds.
type queueStore struct {
	client  kubernetes.Interface
	limiter workqueue.RateLimiter
	done    chan struct{}
	once    sync.Once

	mu      sync.Mutex // guards all below
	unsaved map[string]*corev1.PersistentVolume
	// queue is nil unless Run runs. Run queues what is unsaved when it begins.
	queue queue
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

// setQueue has the volumes saved that were stored before Run, and those that are later.
func (s *queueStore) setQueue(queue queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = queue
	for name := range s.unsaved {
		queue.Add(name)
	}
}

func (s *queueStore) Run(ctx context.Context, threadiness int) {
	queue := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Name: "unsaved"})
	s.setQueue(queue)
	lasting := context.WithoutCancel(ctx) // workers end when the queue is shut down and empty
	var workers sync.WaitGroup
	for range max(threadiness, 1) {
		workers.Go(contain.Loop(lasting, "provision.Run", "", func(context.Context) { work(ctx, queue, s.save) }))
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
