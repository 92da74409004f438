package csidriver

import (
	"cmp"
	"os"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// defaultResults is how many ranges a message of the service SnapshotMetadata has if the request names no number.
const defaultResults = 1024

// GetMetadataAllocated implements csi.SnapshotMetadataServer: it streams the ranges of the snapshot that have data.
func (d *Driver) GetMetadataAllocated(
	req *csi.GetMetadataAllocatedRequest, stream csi.SnapshotMetadata_GetMetadataAllocatedServer,
) error {
	target, err := d.snapshotFor("snapshot_id", req.GetSnapshotId(), req.GetStartingOffset(), req.GetMaxResults())
	if err != nil {
		return err
	}
	extents, err := d.store.dataExtents(target)
	if err != nil {
		return grpcError(err)
	}
	ranges := mergeRanges(extents, uint64(req.GetStartingOffset()), uint64(target.size))
	return sendRanges(ranges, int(req.GetMaxResults()), func(part []*csi.BlockMetadata) error {
		return stream.Send(&csi.GetMetadataAllocatedResponse{
			BlockMetadataType: csi.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: target.size, BlockMetadata: part})
	})
}

// GetMetadataDelta implements csi.SnapshotMetadataServer: it streams the ranges in which the target snapshot differs from the base.
// Where both have the same block of the disk, which they share by reflink, they do not.
func (d *Driver) GetMetadataDelta(
	req *csi.GetMetadataDeltaRequest, stream csi.SnapshotMetadata_GetMetadataDeltaServer,
) error {
	base, err := d.snapshotFor("base_snapshot_id", req.GetBaseSnapshotId(), 0, 0)
	if err != nil {
		return err
	}
	target, err := d.snapshotFor("target_snapshot_id", req.GetTargetSnapshotId(), req.GetStartingOffset(), req.GetMaxResults())
	if err != nil {
		return err
	}
	if base.Source != target.Source {
		return status.Errorf(codes.InvalidArgument, "target_snapshot_id: snapshot %q is of volume %q, and snapshot %q is of volume %q",
			target.id, target.Source, base.id, base.Source)
	}
	before, err := d.store.dataExtents(base)
	if err != nil {
		return grpcError(err)
	}
	after, err := d.store.dataExtents(target)
	if err != nil {
		return grpcError(err)
	}
	ranges := mergeRanges(changedExtents(before, after), uint64(req.GetStartingOffset()), uint64(target.size))
	return sendRanges(ranges, int(req.GetMaxResults()), func(part []*csi.BlockMetadata) error {
		return stream.Send(&csi.GetMetadataDeltaResponse{
			BlockMetadataType: csi.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: target.size, BlockMetadata: part})
	})
}

// snapshotFor returns the snapshot of a request of the service SnapshotMetadata, whose field has its id.
func (d *Driver) snapshotFor(field, id string, offset int64, results int32) (*item, error) {
	switch {
	case id == "":
		return nil, missingField(field)
	case offset < 0:
		return nil, status.Errorf(codes.InvalidArgument, "starting_offset: %d is negative", offset)
	case results < 0:
		return nil, status.Errorf(codes.InvalidArgument, "max_results: %d is negative", results)
	case !isSnapshotID(id):
		return nil, status.Errorf(codes.NotFound, "%s: snapshot %q %v", field, id, errNotFound)
	}
	it, err := d.store.get(id)
	if err != nil {
		return nil, grpcError(err)
	}
	if offset > it.size {
		return nil, status.Errorf(codes.OutOfRange, "starting_offset: %d is after the end of snapshot %q, %d", offset, id, it.size)
	}
	return it, nil
}

// dataExtents returns the extents of the image that have data.
func (s *store) dataExtents(it *item) ([]extent, error) {
	image, err := os.Open(s.image(it.id))
	if err != nil {
		return nil, err
	}
	defer image.Close()
	var found []extent
	err = forEachExtent(image, 0, true, func(e extent) (bool, error) {
		if e.flags&extentUnwritten == 0 {
			found = append(found, e)
		}
		return true, nil
	})
	return found, err
}

// changedExtents returns the ranges in which one image differs from the other. Both lists are sorted.
func changedExtents(before, after []extent) []extent {
	var changed []extent
	for len(before) > 0 && len(after) > 0 {
		b, a := &before[0], &after[0]
		switch {
		case b.end() <= a.logical:
			changed, before = append(changed, *b), before[1:]
		case a.end() <= b.logical:
			changed, after = append(changed, *a), after[1:]
		case b.logical < a.logical:
			changed = append(changed, b.cut(a.logical-b.logical))
		case a.logical < b.logical:
			changed = append(changed, a.cut(b.logical-a.logical))
		default:
			common := min(a.length, b.length)
			same := a.isBlock() && b.isBlock() && a.physical == b.physical
			part := a.cut(common)
			b.cut(common)
			if !same {
				changed = append(changed, part)
			}
			if a.length == 0 {
				after = after[1:]
			}
			if b.length == 0 {
				before = before[1:]
			}
		}
	}
	return append(append(changed, before...), after...)
}

// isBlock reports whether the extent's data are at its physical address as they are.
func (e *extent) isBlock() bool {
	return e.flags&(extentUnknown|extentDelayed|extentEncoded|extentInline) == 0
}

// cut removes the first bytes of the extent and returns them.
func (e *extent) cut(bytes uint64) extent {
	head := *e
	head.length = bytes
	e.logical += bytes
	e.physical += bytes
	e.length -= bytes
	return head
}

// mergeRanges returns the ranges of the extents between the offsets, as few as possible.
func mergeRanges(extents []extent, from, to uint64) []*csi.BlockMetadata {
	slices.SortFunc(extents, func(a, b extent) int { return cmp.Compare(a.logical, b.logical) })
	var ranges []*csi.BlockMetadata
	for _, e := range extents {
		start, end := max(e.logical, from), min(e.end(), to)
		if start >= end {
			continue
		}
		if len(ranges) > 0 {
			last := ranges[len(ranges)-1]
			if lastEnd := uint64(last.ByteOffset + last.SizeBytes); lastEnd >= start {
				last.SizeBytes = int64(max(end, lastEnd)) - last.ByteOffset
				continue
			}
		}
		ranges = append(ranges, &csi.BlockMetadata{ByteOffset: int64(start), SizeBytes: int64(end - start)})
	}
	return ranges
}

// sendRanges sends the ranges, at most limit in one message; 0 means the default.
func sendRanges(ranges []*csi.BlockMetadata, limit int, send func([]*csi.BlockMetadata) error) error {
	if limit == 0 {
		limit = defaultResults
	}
	for part := range slices.Chunk(ranges, limit) {
		if err := send(part); err != nil {
			return err
		}
	}
	return nil
}
