package csi

import (
	"context"
	"fmt"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
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
		return theSnapshot(id, resp.GetSnapshot())
	case capabilities.rpc[csiapi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS]:
		resp, err := client.ListSnapshots(ctx, &csiapi.ListSnapshotsRequest{SnapshotId: id, Secrets: secrets})
		if err := csierr.Classify(ctx, err); err != nil {
			return taker.Snapshot{}, err
		}
		return listedSnapshot(id, resp)
	}
	return taker.Snapshot{ID: id, Ready: true}, nil
}

// listedSnapshot returns the snapshot out of a list: a driver may list others, too.
func listedSnapshot(id string, list *csiapi.ListSnapshotsResponse) (taker.Snapshot, error) {
	for _, entry := range list.GetEntries() {
		if entry.GetSnapshot().GetSnapshotId() == id {
			return snapshotOf(entry.GetSnapshot()), nil
		}
	}
	return taker.Snapshot{}, status.Errorf(codes.NotFound, "the driver lists no snapshot %q", id)
}

// theSnapshot returns the snapshot that a driver reports, if it is the one that it was asked for.
func theSnapshot(id string, reported *csiapi.Snapshot) (taker.Snapshot, error) {
	if reported.GetSnapshotId() != id {
		return taker.Snapshot{}, fmt.Errorf("the driver reports snapshot %q instead of %q", reported.GetSnapshotId(), id)
	}
	return snapshotOf(reported), nil
}

func snapshotOf(reported *csiapi.Snapshot) taker.Snapshot {
	found := taker.Snapshot{
		ID: reported.GetSnapshotId(), Size: reported.GetSizeBytes(), Ready: reported.GetReadyToUse(), Group: reported.GetGroupSnapshotId(),
	}
	found.Created = creationTime(reported.GetCreationTime())
	return found
}

// creationTime returns the time of a snapshot, the zero time if the driver does not report one that the API can have, which has it in
// nanoseconds since 1970.
func creationTime(reported *timestamppb.Timestamp) time.Time {
	if at := reported.AsTime(); reported.IsValid() && time.Unix(0, at.UnixNano()).Equal(at) {
		return at
	}
	return time.Time{}
}
