package csi

import (
	"context"
	"fmt"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"google.golang.org/grpc/codes"

	"github.com/berth-dev/berth/volume"
)

// AttachError implements volume.AttachErrorReader: it reads the error that the attacher wrote into the
// VolumeAttachment.
func (p *Plugin) AttachError(ctx context.Context, spec volume.Spec) error {
	s, err := sourceOf(spec, "")
	if err != nil {
		return err
	}
	name := AttachmentName(s.handle, s.driver, p.config.NodeName)
	object, err := p.deps.Client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // no attempt was made yet
	}
	if err != nil {
		return fmt.Errorf("read volume attachment %q of volume %q: %w", name, s.name, err)
	}
	failed := object.Status.AttachError
	if object.Status.Attached || failed == nil {
		return nil
	}
	err = fmt.Errorf("attach volume %q: csi driver %s: %s", s.name, s.driver, failed.Message)
	if failed.ErrorCode == nil || codes.Code(*failed.ErrorCode) != codes.ResourceExhausted || p.AllocatableUpdatePeriod(s.driver) == 0 {
		return err
	}
	if p.deps.OnLimitExceeded != nil {
		p.deps.OnLimitExceeded(s.driver)
	}
	return volume.AttachLimitExceeded(err)
}

// AllocatableUpdatePeriod returns how often the driver's volume limit of this node should be read; 0 means once, when
// the driver is registered. It does not wait until the CSIDriver objects have been listed: subscribers of Drivers are
// notified of their changes.
func (p *Plugin) AllocatableUpdatePeriod(driver string) time.Duration {
	stored, ok, err := p.csiDrivers.GetByKey(driver)
	if err != nil || !ok {
		return 0
	}
	object, ok := stored.(*storagev1.CSIDriver)
	if !ok || object.Spec.NodeAllocatableUpdatePeriodSeconds == nil {
		return 0
	}
	return time.Duration(*object.Spec.NodeAllocatableUpdatePeriodSeconds) * time.Second
}
