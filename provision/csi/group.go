package csi

import (
	"context"
	"fmt"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/csierr"
	"github.com/berth-dev/berth/provision/snapshot/grouptaker"
	"github.com/berth-dev/berth/provision/snapshot/shared"
)

var _ grouptaker.Driver = (*Provisioner)(nil)

// takesGroups returns whether the driver's group controller service takes group snapshots.
func takesGroups(ctx context.Context, conn grpc.ClientConnInterface) (bool, error) {
	resp, err := csiapi.NewGroupControllerClient(conn).GroupControllerGetCapabilities(ctx, &csiapi.GroupControllerGetCapabilitiesRequest{},
		grpc.WaitForReady(true))
	if err != nil {
		return false, err
	}
	for _, c := range resp.GetCapabilities() {
		if c.GetRpc().GetType() == csiapi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT {
			return true, nil
		}
	}
	return false, nil
}

// groupClient returns a client of the driver's group controller service, and the secrets for a call.
func (p *Provisioner) groupClient(ctx context.Context, secret *corev1.SecretReference) (csiapi.GroupControllerClient, map[string]string, error) {
	capabilities, _, err := p.driver.controller(ctx)
	if err != nil {
		return nil, nil, notSent(err)
	}
	if !capabilities.groups {
		return nil, nil, fmt.Errorf("driver %q: %w", p.config.Name, shared.ErrGroupsUnsupported)
	}
	secrets, err := p.readSecret(ctx, secret)
	if err != nil {
		return nil, nil, notSent(err)
	}
	conn, err := p.driver.connect()
	if err != nil {
		return nil, nil, notSent(err)
	}
	return csiapi.NewGroupControllerClient(conn), secrets, nil
}

// CreateGroup implements grouptaker.Driver.
func (p *Provisioner) CreateGroup(ctx context.Context, request grouptaker.CreateRequest) (grouptaker.Group, error) {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	client, secrets, err := p.groupClient(ctx, request.Secret)
	if err != nil {
		return grouptaker.Group{}, err
	}
	resp, err := client.CreateVolumeGroupSnapshot(ctx, &csiapi.CreateVolumeGroupSnapshotRequest{
		Name: request.Name, SourceVolumeIds: request.Volumes, Parameters: request.Parameters, Secrets: secrets,
	})
	if err := csierr.Classify(ctx, err); err != nil {
		return grouptaker.Group{}, err
	}
	return groupOf(resp.GetGroupSnapshot()), nil
}

// DeleteGroup implements grouptaker.Driver.
func (p *Provisioner) DeleteGroup(ctx context.Context, id string, snapshots []string, secret *corev1.SecretReference) error {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	client, secrets, err := p.groupClient(ctx, secret)
	if err != nil {
		return err
	}
	_, err = client.DeleteVolumeGroupSnapshot(ctx, &csiapi.DeleteVolumeGroupSnapshotRequest{
		GroupSnapshotId: id, SnapshotIds: snapshots, Secrets: secrets,
	})
	return csierr.Classify(ctx, err)
}

// GetGroup implements grouptaker.Driver.
func (p *Provisioner) GetGroup(ctx context.Context, id string, snapshots []string, secret *corev1.SecretReference) (grouptaker.Group, error) {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	client, secrets, err := p.groupClient(ctx, secret)
	if err != nil {
		return grouptaker.Group{}, err
	}
	resp, err := client.GetVolumeGroupSnapshot(ctx, &csiapi.GetVolumeGroupSnapshotRequest{
		GroupSnapshotId: id, SnapshotIds: snapshots, Secrets: secrets,
	})
	if err := csierr.Classify(ctx, err); err != nil {
		return grouptaker.Group{}, err
	}
	return groupOf(resp.GetGroupSnapshot()), nil
}

func groupOf(reported *csiapi.VolumeGroupSnapshot) grouptaker.Group {
	group := grouptaker.Group{ID: reported.GetGroupSnapshotId(), Ready: reported.GetReadyToUse()}
	group.Created = creationTime(reported.GetCreationTime())
	for _, member := range reported.GetSnapshots() {
		group.Snapshots = append(group.Snapshots, grouptaker.Member{Snapshot: snapshotOf(member), Volume: member.GetSourceVolumeId()})
	}
	return group
}
