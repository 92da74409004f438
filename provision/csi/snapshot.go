package csi

import (
	"context"
	"fmt"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/csierr"
	"github.com/berth-dev/berth/provision/snapshot/shared"
	"github.com/berth-dev/berth/provision/snapshot/taker"
)

var _ taker.Driver = (*Provisioner)(nil)

// CreateSnapshot implements taker.Driver.
func (p *Provisioner) CreateSnapshot(ctx context.Context, request taker.CreateRequest) (taker.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	capabilities, client, err := p.driver.controller(ctx)
	if err != nil {
		return taker.Snapshot{}, notSent(err)
	}
	if !capabilities.rpc[csiapi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT] {
		return taker.Snapshot{}, fmt.Errorf("driver %q: %w", p.config.Name, shared.ErrUnsupported)
	}
	secrets, err := p.readSecret(ctx, request.Secret)
	if err != nil {
		return taker.Snapshot{}, notSent(err)
	}
	resp, err := client.CreateSnapshot(ctx, &csiapi.CreateSnapshotRequest{
		Name: request.Name, SourceVolumeId: request.Volume, Parameters: request.Parameters, Secrets: secrets,
	})
	if err := csierr.Classify(ctx, err); err != nil {
		return taker.Snapshot{}, err
	}
	return snapshotOf(resp.GetSnapshot()), nil
}

// notSent removes the gRPC status of an error of another call, which says nothing about the call that was not made.
func notSent(err error) error { return fmt.Errorf("%s", err.Error()) } //nolint:err113 // the chain must end here

// DeleteSnapshot implements taker.Driver.
func (p *Provisioner) DeleteSnapshot(ctx context.Context, id string, secret *corev1.SecretReference) error {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	capabilities, client, err := p.driver.controller(ctx)
	if err != nil {
		return err
	}
	if !capabilities.rpc[csiapi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT] {
		return fmt.Errorf("driver %q: %w", p.config.Name, shared.ErrUnsupported)
	}
	secrets, err := p.readSecret(ctx, secret)
	if err != nil {
		return err
	}
	_, err = client.DeleteSnapshot(ctx, &csiapi.DeleteSnapshotRequest{SnapshotId: id, Secrets: secrets})
	return csierr.Classify(ctx, err)
}

// GetSnapshot implements taker.Driver by GetSnapshot or ListSnapshots, whichever the driver supports.
func (p *Provisioner) GetSnapshot(ctx context.Context, id string, secret *corev1.SecretReference) (taker.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	capabilities, client, err := p.driver.controller(ctx)
	if err != nil {
		return taker.Snapshot{}, err
	}
	secrets, err := p.readSecret(ctx, secret)
	if err != nil {
		return taker.Snapshot{}, err
	}
	switch {
	case capabilities.rpc[csiapi.ControllerServiceCapability_RPC_GET_SNAPSHOT]:
		resp, err := client.GetSnapshot(ctx, &csiapi.GetSnapshotRequest{SnapshotId: id, Secrets: secrets})
		if err := csierr.Classify(ctx, err); err != nil {
			return taker.Snapshot{}, err
		}
		return snapshotOf(resp.GetSnapshot()), nil
	case capabilities.rpc[csiapi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS]:
		resp, err := client.ListSnapshots(ctx, &csiapi.ListSnapshotsRequest{SnapshotId: id, Secrets: secrets})
		if err := csierr.Classify(ctx, err); err != nil {
			return taker.Snapshot{}, err
		}
		if len(resp.GetEntries()) == 0 {
			return taker.Snapshot{}, status.Errorf(codes.NotFound, "the driver lists no snapshot %q", id)
		}
		return snapshotOf(resp.GetEntries()[0].GetSnapshot()), nil
	}
	return taker.Snapshot{ID: id, Ready: true}, nil
}

func snapshotOf(reported *csiapi.Snapshot) taker.Snapshot {
	found := taker.Snapshot{
		ID: reported.GetSnapshotId(), Size: reported.GetSizeBytes(), Ready: reported.GetReadyToUse(), Group: reported.GetGroupSnapshotId(),
	}
	if created := reported.GetCreationTime(); created.IsValid() {
		found.Created = created.AsTime()
	}
	return found
}
