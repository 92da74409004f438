package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	storageinformers "k8s.io/client-go/informers/storage/v1"
	"k8s.io/client-go/kubernetes"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

// DefaultTimeout is the default of Config.Timeout.
const DefaultTimeout = 2 * time.Minute

// Deps is what the plugin needs. The informers are run by their owner; Logger and Clock may be nil.
type Deps struct {
	Client      kubernetes.Interface
	Attachments storageinformers.VolumeAttachmentInformer
	Drivers     storageinformers.CSIDriverInformer
	Logger      *slog.Logger
	Clock       clock.Clock
}

// Config is the configuration of the plugin.
type Config struct {
	// Timeout is how long an attach or a detach may take before it counts as failed. Default DefaultTimeout.
	Timeout time.Duration
	// Owner, if not empty, is the value of AnnOwner of the VolumeAttachments that the plugin creates.
	Owner string
}

// Plugin is the operationexecutor.AttachablePlugin of CSI volumes. It is safe for concurrent use.
type Plugin struct {
	client      kubernetes.Interface
	attachments storagelisters.VolumeAttachmentLister
	drivers     storagelisters.CSIDriverLister
	logger      *slog.Logger
	clock       clock.Clock
	timeout     time.Duration
	annotations map[string]string // of new VolumeAttachments

	mu sync.Mutex // guards the two below
	// waiters are the signals to set at each change of a VolumeAttachment, by its name.
	waiters map[string]map[wakeup.Signal]struct{}
	// deleted has the VolumeAttachments that were deleted and that the cache may still show as they were before.
	deleted map[types.UID]struct{}
}

var _ operationexecutor.AttachablePlugin = (*Plugin)(nil)

func (d Deps) validate() error {
	switch {
	case d.Client == nil:
		return errors.New("attachdetach/csi: Deps.Client is required")
	case d.Attachments == nil:
		return errors.New("attachdetach/csi: Deps.Attachments is required")
	case d.Drivers == nil:
		return errors.New("attachdetach/csi: Deps.Drivers is required")
	}
	return nil
}

// New returns the plugin and registers with the informer of VolumeAttachments.
func New(deps Deps, config Config) (*Plugin, error) {
	if err := deps.validate(); err != nil {
		return nil, err
	}
	if config.Timeout <= 0 {
		config.Timeout = DefaultTimeout
	}
	p := &Plugin{
		client: deps.Client, attachments: deps.Attachments.Lister(), drivers: deps.Drivers.Lister(),
		logger: deps.Logger, clock: deps.Clock, timeout: config.Timeout,
		waiters: make(map[string]map[wakeup.Signal]struct{}), deleted: make(map[types.UID]struct{}),
	}
	if config.Owner != "" {
		p.annotations = map[string]string{AnnOwner: config.Owner}
	}
	if p.logger == nil {
		p.logger = slog.New(slog.DiscardHandler)
	}
	if p.clock == nil {
		p.clock = clock.RealClock{}
	}
	_, err := deps.Attachments.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { p.onAttachment(obj, false) },
		UpdateFunc: func(_, obj any) { p.onAttachment(obj, false) },
		DeleteFunc: func(obj any) { p.onAttachment(obj, true) },
	})
	if err != nil {
		return nil, fmt.Errorf("create csi attach plugin: watch volume attachments: %w", err)
	}
	return p, nil
}

// onAttachment notifies the waiters of the VolumeAttachment. The cache is at least as new as the event.
func (p *Plugin) onAttachment(obj any, gone bool) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	va, ok := obj.(*storagev1.VolumeAttachment)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if gone {
		delete(p.deleted, va.UID)
	}
	for signal := range p.waiters[va.Name] {
		signal.Notify()
	}
}

// subscribe returns a signal that is set after every change of the VolumeAttachment, until stop is called.
func (p *Plugin) subscribe(name string) (signal wakeup.Signal, stop func()) {
	signal = wakeup.NewSignal()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiters[name] == nil {
		p.waiters[name] = make(map[wakeup.Signal]struct{})
	}
	p.waiters[name][signal] = struct{}{}
	return signal, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.waiters[name], signal)
		if len(p.waiters[name]) == 0 {
			delete(p.waiters, name)
		}
	}
}

// Name implements operationexecutor.AttachablePlugin.
func (p *Plugin) Name() string { return PluginName }

// CanAttach implements operationexecutor.AttachablePlugin: a PersistentVolume of a CSI driver whose CSIDriver object,
// if it exists, does not exempt it from attachment.
func (p *Plugin) CanAttach(spec *volume.Spec) (bool, error) {
	if spec.PV == nil || spec.PV.Spec.CSI == nil {
		return false, nil
	}
	return p.attachRequired(spec.PV.Spec.CSI.Driver)
}

func (p *Plugin) attachRequired(name string) (bool, error) {
	driver, err := p.drivers.Get(name)
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read csi driver %q: %w", name, err)
	}
	return driver.Spec.AttachRequired == nil || *driver.Spec.AttachRequired, nil
}

// VolumeName implements operationexecutor.AttachablePlugin.
func (p *Plugin) VolumeName(spec *volume.Spec) (string, error) {
	if spec.PV == nil || spec.PV.Spec.CSI == nil {
		return "", fmt.Errorf("name volume %q: it has no field spec.csi", spec.DirName())
	}
	return VolumeName(spec.PV.Spec.CSI.Driver, spec.PV.Spec.CSI.VolumeHandle), nil
}

// Attach implements operationexecutor.AttachablePlugin.
func (p *Plugin) Attach(ctx context.Context, spec *volume.Spec, node types.NodeName) (string, error) {
	source := spec.PV.Spec.CSI
	name := AttachmentName(source.Driver, source.VolumeHandle, node)
	signal, stop := p.subscribe(name)
	defer stop()
	_, err := p.attachments.Get(name)
	if apierrors.IsNotFound(err) {
		_, err = p.client.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: p.annotations},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: source.Driver, NodeName: string(node),
				Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &spec.PV.Name},
			},
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
	}
	if err != nil {
		return "", fmt.Errorf("create volume attachment %q: %w", name, err)
	}
	known := false
	return "", p.waitFor(ctx, signal, fmt.Sprintf("volume attachment %q of driver %q to be attached", name, source.Driver),
		func() (bool, error) {
			va, err := p.attachments.Get(name)
			if apierrors.IsNotFound(err) {
				if known {
					return false, fmt.Errorf("volume attachment %q was deleted by someone else", name)
				}
				return false, nil // the cache does not have it yet
			}
			if err != nil {
				return false, fmt.Errorf("read volume attachment %q: %w", name, err)
			}
			known = true
			return p.isAttached(va)
		})
}

// isAttached reads the result of the attacher.
func (p *Plugin) isAttached(va *storagev1.VolumeAttachment) (bool, error) {
	p.mu.Lock()
	_, stale := p.deleted[va.UID]
	p.mu.Unlock()
	switch {
	case va.DeletionTimestamp != nil || stale:
		return false, fmt.Errorf("volume attachment %q is being deleted", va.Name)
	case va.Status.Attached:
		return true, nil
	case va.Status.AttachError != nil:
		return false, errors.New(va.Status.AttachError.Message)
	}
	return false, nil
}

// Detach implements operationexecutor.AttachablePlugin.
func (p *Plugin) Detach(ctx context.Context, volumeName string, node types.NodeName) error {
	driver, handle, err := SplitVolumeName(volumeName)
	if err != nil {
		return err
	}
	name := AttachmentName(driver, handle, node)
	signal, stop := p.subscribe(name)
	defer stop()
	before, err := p.attachments.Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read volume attachment %q: %w", name, err)
	}
	err = p.client.StorageV1().VolumeAttachments().Delete(ctx, name, metav1.DeleteOptions{})
	absent := apierrors.IsNotFound(err)
	if err != nil && !absent {
		return fmt.Errorf("delete volume attachment %q: %w", name, err)
	}
	var old *storagev1.VolumeError
	if before == nil {
		if absent {
			return nil
		}
		// It is new, and the cache does not have it yet: its absence there proves nothing.
		if before, err = p.client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{}); err != nil {
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("read volume attachment %q: %w", name, err)
		}
		return p.waitDeleted(ctx, signal, before, before.Status.DetachError, false)
	}
	if before.DeletionTimestamp != nil {
		old = before.Status.DetachError // of an earlier attempt; a new error differs
	}
	return p.waitDeleted(ctx, signal, before, old, true)
}

// waitDeleted returns when the VolumeAttachment has disappeared from the cache, or a detach error other than old appears.
// cached reports that the cache had it, so that its absence from the first read on proves the deletion.
func (p *Plugin) waitDeleted(ctx context.Context, signal wakeup.Signal, before *storagev1.VolumeAttachment,
	old *storagev1.VolumeError, cached bool,
) error {
	p.mu.Lock()
	p.deleted[before.UID] = struct{}{}
	p.mu.Unlock()
	defer p.forgetDeleted(before.UID, before.Name)
	first := true
	gone := func() (bool, error) {
		va, err := p.attachments.Get(before.Name)
		if apierrors.IsNotFound(err) {
			// The first read is before any signal.
			if first && !cached {
				first = false
				return false, nil
			}
			return true, nil
		}
		first = false
		if err != nil {
			return false, fmt.Errorf("read volume attachment %q: %w", before.Name, err)
		}
		now := va.Status.DetachError
		if now != nil && (old == nil || !now.Time.Equal(&old.Time) || now.Message != old.Message) {
			return false, errors.New(now.Message)
		}
		return va.UID != before.UID, nil // an object of that name with another UID replaced it
	}
	return p.waitFor(ctx, signal, fmt.Sprintf("volume attachment %q to be detached by its driver", before.Name), gone)
}

// forgetDeleted forgets that the VolumeAttachment was deleted, once it has disappeared from the cache.
func (p *Plugin) forgetDeleted(uid types.UID, name string) {
	if va, err := p.attachments.Get(name); apierrors.IsNotFound(err) || err == nil && va.UID != uid {
		p.mu.Lock()
		delete(p.deleted, uid)
		p.mu.Unlock()
	}
}

// waitFor calls check now and after each signal until it returns true or an error, the timeout expires, or ctx ends.
func (p *Plugin) waitFor(ctx context.Context, signal wakeup.Signal, what string, check func() (bool, error)) error {
	timer := p.clock.NewTimer(p.timeout)
	defer timer.Stop()
	for {
		done, err := check()
		if done || err != nil {
			return err
		}
		select {
		case <-signal.C():
		case <-timer.C():
			return fmt.Errorf("wait for %s: timed out after %v; check whether the driver's attacher runs", what, p.timeout)
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		}
	}
}

// Verify implements operationexecutor.AttachablePlugin. It reads the cache: a VolumeAttachment has the driver's result, and
// only its absence proves that the volume is not attached.
func (p *Plugin) Verify(_ context.Context, volumes []operationexecutor.AttachedVolume, node types.NodeName,
) (map[corev1.UniqueVolumeName]operationexecutor.Verdict, error) {
	verdicts := make(map[corev1.UniqueVolumeName]operationexecutor.Verdict, len(volumes))
	for _, attached := range volumes {
		_, volumeName, err := operationexecutor.SplitUniqueVolumeName(attached.VolumeName)
		if err != nil {
			return nil, err
		}
		driver, handle, err := SplitVolumeName(volumeName)
		if err != nil {
			return nil, err
		}
		verdict, err := p.AttachmentState(driver, handle, node)
		if err != nil {
			return nil, err
		}
		verdicts[attached.VolumeName] = verdict
	}
	return verdicts, nil
}

// AttachmentState returns whether the volume is attached to the node, by its VolumeAttachment.
func (p *Plugin) AttachmentState(driver, handle string, node types.NodeName) (operationexecutor.Verdict, error) {
	needed, err := p.attachRequired(driver)
	if err != nil {
		return operationexecutor.VerdictUncertain, err
	}
	if !needed {
		return operationexecutor.VerdictAttached, nil
	}
	va, err := p.attachments.Get(AttachmentName(driver, handle, node))
	switch {
	case apierrors.IsNotFound(err):
		return operationexecutor.VerdictDetached, nil
	case err != nil:
		return operationexecutor.VerdictUncertain, err
	case va.DeletionTimestamp == nil && va.Status.Attached:
		return operationexecutor.VerdictAttached, nil
	}
	return operationexecutor.VerdictUncertain, nil
}

// IsBeingAttached reports whether the volume of this plugin has a VolumeAttachment for the node that is neither attached nor being
// deleted.
func (p *Plugin) IsBeingAttached(name corev1.UniqueVolumeName, node types.NodeName) bool {
	plugin, volumeName, err := operationexecutor.SplitUniqueVolumeName(name)
	if err != nil || plugin != PluginName {
		return false
	}
	driver, handle, err := SplitVolumeName(volumeName)
	if err != nil {
		return false
	}
	va, err := p.attachments.Get(AttachmentName(driver, handle, node))
	return err == nil && va.DeletionTimestamp == nil && !va.Status.Attached
}
