package csi

import (
	"context"
	"errors"
	"fmt"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/internal/csierr"
	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/timeline"
)

// ProvisionContext implements provision.ProvisionerContext.
func (p *Provisioner) ProvisionContext(
	ctx context.Context, options provision.VolumeOptions,
) (*corev1.PersistentVolume, provision.ProvisioningState, error) {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	capabilities, client, err := p.driver.controller(ctx)
	if err != nil {
		return nil, provision.ProvisioningNoChange, err
	}
	plan, err := p.planOrResume(ctx, capabilities, options)
	if errors.Is(err, errNoCSINode) {
		return nil, provision.ProvisioningReschedule, err
	}
	if err != nil {
		// Nothing was sent, so nothing has changed.
		return nil, provision.ProvisioningNoChange, err
	}
	if err := p.protectSource(ctx, plan); err != nil {
		return nil, provision.ProvisioningNoChange, err
	}
	volume, state, err := p.create(ctx, client, plan, capabilities.topology && options.SelectedNode != nil)
	if p.isPending(plan, state) {
		return volume, state, err
	}
	p.releaseSource(ctx, options.PVName)
	return volume, state, err
}

// isPending records what a call left behind, and returns whether the volume may still be created by it or by an earlier one.
func (p *Provisioner) isPending(plan *plan, state provision.ProvisioningState) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := plan.options.PVName
	switch state {
	case provision.ProvisioningInBackground:
		p.pending[name] = plan
	case provision.ProvisioningNoChange:
	default:
		delete(p.pending, name)
	}
	return p.pending[name] != nil
}

// planOrResume returns a new plan, or the one of an unfinished call with its current secrets.
func (p *Provisioner) planOrResume(
	ctx context.Context, capabilities *capabilities, options provision.VolumeOptions,
) (*plan, error) {
	p.mu.Lock()
	left := p.pending[options.PVName]
	p.mu.Unlock()
	if left == nil {
		return p.plan(ctx, capabilities, options)
	}
	secrets, err := p.readSecret(ctx, left.refs[secretProvision])
	if err != nil {
		p.logger.Info("failed to read secret again; using the last one", "volume", options.PVName, "error", err)
		return left, nil
	}
	again := *left
	again.request = proto.CloneOf(left.request)
	again.request.Secrets = secrets
	return &again, nil
}

func (p *Provisioner) create(
	ctx context.Context, client csiapi.ControllerClient, plan *plan, mayReschedule bool,
) (*corev1.PersistentVolume, provision.ProvisioningState, error) {
	name := plan.options.PVName
	resp, err := client.CreateVolume(ctx, plan.request)
	if err := csierr.Classify(ctx, err); err != nil {
		err = fmt.Errorf("create volume %q by driver %q: %w", name, p.config.Name, err)
		state := provisioningState(status.Code(err), mayReschedule)
		if status.Code(err) == codes.InvalidArgument {
			err = infeasible(err) // CSI: the caller must fix a field before it tries again
		}
		return nil, state, err
	}
	if err := plan.validate(resp.GetVolume()); err != nil {
		state, err := p.deleteUnwanted(ctx, client, plan, resp.GetVolume(), err)
		return nil, state, err
	}
	return plan.volume(p.config.Name, resp.GetVolume()), provision.ProvisioningFinished, nil
}

// infeasible returns the error for a request that fails until it changes.
func infeasible(err error) error {
	return &provision.InfeasibleError{Err: timeline.WithReason(err, "",
		"create the claim again without what is rejected, or with a StorageClass whose driver supports it")}
}

// provisioningState says what a CreateVolume that failed with that code left behind.
func provisioningState(code codes.Code, mayReschedule bool) provision.ProvisioningState {
	switch code {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted:
		// It may be in progress: CSI defines it so, or a response was lost.
		return provision.ProvisioningInBackground
	case codes.AlreadyExists:
		// The name belongs to this claim alone: the volume is from an earlier call with another request.
		return provision.ProvisioningInBackground
	case codes.ResourceExhausted:
		if mayReschedule {
			return provision.ProvisioningReschedule
		}
		return provision.ProvisioningFinished // out of capacity; a driver that works on an earlier call returns Aborted
	case codes.Unauthenticated, codes.PermissionDenied:
		return provision.ProvisioningNoChange // the driver did not process it
	}
	return provision.ProvisioningFinished
}

// deleteUnwanted removes a volume that is not what was asked for.
func (p *Provisioner) deleteUnwanted(
	ctx context.Context, client csiapi.ControllerClient, plan *plan, created *csiapi.Volume, cause error,
) (provision.ProvisioningState, error) {
	cause = fmt.Errorf("create volume %q by driver %q: %w", plan.options.PVName, p.config.Name, cause)
	if created.GetVolumeId() == "" {
		return provision.ProvisioningInBackground, cause
	}
	_, err := client.DeleteVolume(ctx, &csiapi.DeleteVolumeRequest{
		VolumeId: created.GetVolumeId(), Secrets: plan.request.GetSecrets(),
	})
	if err != nil {
		return provision.ProvisioningInBackground, fmt.Errorf("%w; and failed to delete it: %w", cause, err)
	}
	return provision.ProvisioningFinished, cause
}

// DeleteContext implements provision.DeleterContext.
func (p *Provisioner) DeleteContext(ctx context.Context, volume *corev1.PersistentVolume) error {
	source := volume.Spec.CSI
	if source == nil || source.Driver != p.config.Name {
		return &provision.IgnoredError{Reason: fmt.Sprintf("volume %q is not of driver %q", volume.Name, p.config.Name)}
	}
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	if err := p.checkOnThisNode(ctx, volume); err != nil {
		return err
	}
	capabilities, client, err := p.driver.controller(ctx)
	if err != nil {
		return err
	}
	if !capabilities.rpc[csiapi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME] {
		return fmt.Errorf("delete volume %q: driver %q does not support deleting volumes", volume.Name, p.config.Name)
	}
	if capabilities.rpc[csiapi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME] {
		if err := p.checkDetached(ctx, volume.Name); err != nil {
			return fmt.Errorf("delete volume %q: %w", volume.Name, err)
		}
	}
	ref, err := p.deletionSecret(ctx, volume)
	if err != nil {
		return fmt.Errorf("delete volume %q: %w", volume.Name, err)
	}
	secrets, err := p.readSecret(ctx, ref)
	switch {
	case apierrors.IsNotFound(err):
		// It was deleted first, with the claim's namespace for instance. The driver decides whether it needs it.
		p.logger.Warn("secret not found; deleting the volume without it", "volume", volume.Name, "error", err)
	case err != nil:
		return fmt.Errorf("delete volume %q: %w", volume.Name, err)
	}
	_, err = client.DeleteVolume(ctx, &csiapi.DeleteVolumeRequest{VolumeId: source.VolumeHandle, Secrets: secrets})
	if err != nil {
		return fmt.Errorf("delete volume %q by driver %q: %w", volume.Name, p.config.Name, err)
	}
	return nil
}
