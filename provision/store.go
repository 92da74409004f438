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
)

// VolumeStore saves PersistentVolumes to the API server. The controller saves its volumes by itself, with
// the policies of these stores but without holding up a worker; the stores are for code that saves volumes
// without a controller.
type VolumeStore interface {
	// StoreVolume makes sure that the volume is saved. If it returns nil, the volume is saved or is being
	// saved in the background; otherwise it is not saved and has to be provisioned again. A volume that was
	// handed over cannot be taken back: if its claim is deleted, it is saved and then deleted as usual.
	StoreVolume(claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume) error
	// Run does the store's background work, with so many workers, and blocks until the context ends. It
	// may be called once.
	Run(ctx context.Context, threadiness int)
}

// NewBackoffStore returns a VolumeStore whose StoreVolume blocks while it tries, backoff.Steps times. If the
// volume cannot be saved, it is deleted by the controller's provisioner, with the same backoff, and the
// error is returned. The recorder may be nil; without a controller, the volume is not deleted.
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
		return nil // the answer was lost
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
		return fmt.Errorf("delete volume %q: no controller was given to the store", volume.Name)
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

// NewVolumeStoreQueue returns a VolumeStore that tries once at once and, if that fails, goes on in the
// background at the pace of the limiter until the volume is saved. StoreVolume always returns nil. What
// is not saved when the process ends is lost; the controller's own way of saving does not lose it.
func NewVolumeStoreQueue(client kubernetes.Interface, limiter workqueue.RateLimiter) VolumeStore {
	return &queueStore{client: client, limiter: limiter, unsaved: map[string]*corev1.PersistentVolume{},
		done: make(chan struct{})}
}
