package csidriver

import (
	"context"
	"errors"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// ListVolumes implements csi.ControllerServer. The token is the last id of the page before, which may be gone.
func (d *Driver) ListVolumes(
	_ context.Context, req *csi.ListVolumesRequest,
) (*csi.ListVolumesResponse, error) {
	if token := req.GetStartingToken(); token != "" && !isVolumeID(token) {
		return nil, status.Errorf(codes.Aborted, "starting_token: %q is none of this driver's: start anew", token)
	}
	items, err := d.store.list(d.store.volumes())
	if err != nil {
		return nil, grpcError(err)
	}
	items, next, err := paginate(items, req.GetStartingToken(), req.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	resp := &csi.ListVolumesResponse{NextToken: next}
	for _, it := range items {
		nodes, err := d.publishedNodes(it.id)
		if err != nil { // calls for this volume return the error
			d.store.logUnreadable(it.id, err)
		}
		resp.Entries = append(resp.Entries, &csi.ListVolumesResponse_Entry{
			Volume: d.describe(it),
			Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: nodes},
		})
	}
	return resp, nil
}

// paginate cuts the entries after the token, at most limit of them, out of what is sorted by id.
func paginate(items []*item, token string, limit int32) ([]*item, string, error) {
	if limit < 0 {
		return nil, "", status.Errorf(codes.InvalidArgument, "max_entries: %d is negative", limit)
	}
	for len(items) > 0 && items[0].id <= token {
		items = items[1:]
	}
	if limit == 0 || len(items) <= int(limit) {
		return items, "", nil
	}
	return items[:limit], items[limit-1].id, nil
}

func (d *Driver) publishedNodes(id string) ([]string, error) {
	if d.config.Shared {
		p, err := d.store.publication(id)
		if p == nil {
			return nil, err
		}
		return []string{p.Node}, nil
	}
	device, err := d.loops.find(d.store.image(id))
	if errors.Is(err, os.ErrNotExist) || err == nil && device == nil {
		return nil, nil
	}
	return []string{d.config.NodeID}, err
}

// ControllerGetVolume implements csi.ControllerServer.
func (d *Driver) ControllerGetVolume(
	_ context.Context, req *csi.ControllerGetVolumeRequest,
) (*csi.ControllerGetVolumeResponse, error) {
	if req.GetVolumeId() == "" {
		return nil, missingField("volume_id")
	}
	it, err := d.volume(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	nodes, err := d.publishedNodes(it.id)
	if err != nil {
		return nil, grpcError(err)
	}
	return &csi.ControllerGetVolumeResponse{
		Volume: d.describe(it),
		Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: nodes},
	}, nil
}

// GetCapacity implements csi.ControllerServer.
func (d *Driver) GetCapacity(
	_ context.Context, req *csi.GetCapacityRequest,
) (*csi.GetCapacityResponse, error) {
	nothing := &csi.GetCapacityResponse{}
	minSize := int64(MinSize)
	for _, capability := range req.GetVolumeCapabilities() {
		if checkCapability(capability) != nil {
			return nothing, nil
		}
		if capability.GetMount().GetFsType() == fsXFS {
			minSize = MinSizeXFS
		}
	}
	terms, err := d.parseParameters(req.GetParameters())
	if err != nil {
		return nothing, nil
	}
	if req.GetAccessibleTopology() != nil && !d.includesThisNode(req.GetAccessibleTopology()) {
		return nothing, nil
	}
	used, err := d.store.space()
	if err != nil {
		return nil, grpcError(err)
	}
	largest := terms.largest(used.left())
	resp := &csi.GetCapacityResponse{
		AvailableCapacity: largest, MinimumVolumeSize: wrapperspb.Int64(minSize), MaximumVolumeSize: wrapperspb.Int64(largest),
	}
	if terms.Overcommit == unlimited {
		resp.AvailableCapacity = used.free
	}
	return resp, nil
}

// ListSnapshots implements csi.ControllerServer.
func (d *Driver) ListSnapshots(
	_ context.Context, req *csi.ListSnapshotsRequest,
) (*csi.ListSnapshotsResponse, error) {
	if token := req.GetStartingToken(); token != "" && !isSnapshotID(token) {
		return nil, status.Errorf(codes.Aborted, "starting_token: %q is none of this driver's: start anew", token)
	}
	all, err := d.store.list(d.store.snapshots())
	if err != nil {
		return nil, grpcError(err)
	}
	var items []*item
	for _, it := range all {
		if req.GetSnapshotId() != "" && it.id != req.GetSnapshotId() ||
			req.GetSourceVolumeId() != "" && it.Source != req.GetSourceVolumeId() {
			continue
		}
		items = append(items, it)
	}
	items, next, err := paginate(items, req.GetStartingToken(), req.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	resp := &csi.ListSnapshotsResponse{NextToken: next}
	for _, it := range items {
		resp.Entries = append(resp.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: describeSnapshot(it)})
	}
	return resp, nil
}

// GetSnapshot implements csi.ControllerServer.
func (d *Driver) GetSnapshot(
	_ context.Context, req *csi.GetSnapshotRequest,
) (*csi.GetSnapshotResponse, error) {
	id := req.GetSnapshotId()
	if id == "" {
		return nil, missingField("snapshot_id")
	}
	if !isSnapshotID(id) {
		return nil, status.Errorf(codes.NotFound, "snapshot %q %v", id, errNotFound)
	}
	it, err := d.store.get(id)
	if err != nil {
		return nil, grpcError(err)
	}
	return &csi.GetSnapshotResponse{Snapshot: describeSnapshot(it)}, nil
}

func describeSnapshot(it *item) *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId: it.id, SourceVolumeId: it.Source, SizeBytes: it.size, GroupSnapshotId: it.Group,
		CreationTime: timestamppb.New(it.Created), ReadyToUse: true,
	}
}
