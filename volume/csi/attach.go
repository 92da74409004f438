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

// AttachError implements volume.AttachExplainer: the attacher writes into the VolumeAttachment what went wrong.
func (p *Plugin) AttachError(ctx context.Context, spec volume.Spec) error {
	s, err := sourceOf(spec, "")
	if err != nil {
		return err
	}
	name := AttachmentName(s.handle, s.driver, p.config.NodeName)
	object, err := p.deps.Client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // nobody has tried yet
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

// AllocatableUpdatePeriod is how often the driver wants to be asked how many volumes this node can have; 0 is once, when it is
// registered. It does not wait for the CSIDriver objects to be known: their changes are told to subscribers of Drivers.
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
