package csidriver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// sizeAlignment is what sizes are rounded up to, in bytes.
const sizeAlignment = 4096

// CreateVolume implements csi.ControllerServer. The id follows from the name, which makes it idempotent.
func (d *Driver) CreateVolume(
	ctx context.Context, req *csi.CreateVolumeRequest,
) (*csi.CreateVolumeResponse, error) {
	minSize, err := d.checkCreate(req)
	if err != nil {
		return nil, err
	}
	wanted := metadata{Name: req.GetName()}
	if wanted.terms, err = d.parseParameters(req.GetParameters()); err != nil {
		return nil, err
	}
	if wanted.Limits, err = d.parseLimits(req.GetMutableParameters()); err != nil {
		return nil, err
	}
	if wanted.Source, err = sourceID(req.GetVolumeContentSource()); err != nil {
		return nil, err
	}
	id := volumeID(req.GetName())
	ids := []string{id}
	if wanted.Source != "" {
		ids = append(ids, wanted.Source)
	}
	return run(ctx, d.inflight, ids, func(ctx context.Context) (*csi.CreateVolumeResponse, error) {
		it, err := d.store.get(id)
		switch {
		case err == nil:
			if err = d.store.adopt(it, wanted); err == nil {
				err = sameVolume(it, req.GetCapacityRange(), wanted.Source)
			}
		case errors.Is(err, errNotFound):
			it, err = d.create(ctx, id, wanted, req.GetCapacityRange(), minSize)
		}
		if err != nil {
			return nil, grpcError(err)
		}
		return &csi.CreateVolumeResponse{Volume: d.describe(it)}, nil
	})
}

// checkCreate refuses what cannot be made, and returns the least size of what can.
func (d *Driver) checkCreate(req *csi.CreateVolumeRequest) (minSize int64, err error) {
	if req.GetName() == "" {
		return 0, missingField("name")
	}
	if len(req.GetVolumeCapabilities()) == 0 {
		return 0, missingField("volume_capabilities")
	}
	minSize = MinSize
	for _, capability := range req.GetVolumeCapabilities() {
		if err := checkCapability(capability); err != nil {
			return 0, err
		}
		if capability.GetMount() == nil {
			continue
		}
		fsType := capability.GetMount().GetFsType()
		if fsType == "" {
			fsType = DefaultFSType
		}
		if fsType == fsXFS {
			minSize = MinSizeXFS
		}
		// Better now than when a Pod waits for it.
		if _, err := program("mkfs."+fsType, fsType); err != nil {
			return 0, err
		}
	}
	return minSize, d.checkTopology(req.GetAccessibilityRequirements())
}

// sourceID is the id of what the volume is to be a copy of, "" if of nothing.
func sourceID(source *csi.VolumeContentSource) (string, error) {
	var id string
	switch {
	case source == nil:
		return "", nil
	case source.GetSnapshot() != nil:
		id = source.GetSnapshot().GetSnapshotId()
		if !isSnapshotID(id) {
			return "", status.Errorf(codes.NotFound, "volume_content_source: snapshot %q does not exist", id)
		}
	case source.GetVolume() != nil:
		id = source.GetVolume().GetVolumeId()
		if !isVolumeID(id) {
			return "", status.Errorf(codes.NotFound, "volume_content_source: volume %q does not exist", id)
		}
	default:
		return "", status.Error(codes.InvalidArgument, "volume_content_source names neither a snapshot nor a volume")
	}
	return id, nil
}

// sameVolume refuses a name that is in use for a volume that is not the one asked for.
func sameVolume(it *item, capacity *csi.CapacityRange, source string) error {
	limit := capacity.GetLimitBytes()
	if it.size < capacity.GetRequiredBytes() || limit > 0 && it.size > limit {
		return status.Errorf(codes.AlreadyExists,
			"volume %q exists with %d bytes, outside the capacity_range", it.Name, it.size)
	}
	if it.Source != source {
		return status.Errorf(codes.AlreadyExists, "volume %q exists with the source %q, not %q", it.Name, it.Source, source)
	}
	return nil
}

// chooseSize returns a size in the range, of at least that many bytes.
func chooseSize(capacity *csi.CapacityRange, minSize, otherwise int64) (int64, error) {
	required, limit := capacity.GetRequiredBytes(), capacity.GetLimitBytes()
	switch {
	case required < 0 || limit < 0 || limit > 0 && limit < required || required > math.MaxInt64-sizeAlignment:
		return 0, status.Errorf(codes.InvalidArgument,
			"capacity_range: required_bytes %d and limit_bytes %d are no range", required, limit)
	case required == 0:
		required = otherwise
		if limit > 0 {
			required = min(required, limit)
		}
	}
	size := max(required, minSize)
	if rounded := (size + sizeAlignment - 1) / sizeAlignment * sizeAlignment; limit == 0 || rounded <= limit {
		return rounded, nil
	}
	// Rounding up would exceed the limit: use a size of whole sectors.
	size = (size + sectorSize - 1) / sectorSize * sectorSize
	if size > limit {
		return 0, status.Errorf(codes.OutOfRange,
			"capacity_range: limit_bytes %d is less than the %d bytes that the volume needs", limit, size)
	}
	return size, nil
}

// create creates a volume. The caller holds the ids of the volume and of its source.
func (d *Driver) create(
	ctx context.Context, id string, m metadata, capacity *csi.CapacityRange, minSize int64,
) (*item, error) {
	otherwise := int64(DefaultSize)
	var from *item
	if m.Source != "" {
		var err error
		if from, err = d.store.get(m.Source); err != nil {
			return nil, fmt.Errorf("volume_content_source: %w", err)
		}
		minSize, otherwise = max(minSize, from.size), from.size // of which required_bytes may be less: the source was rounded up
	}
	size, err := chooseSize(capacity, minSize, otherwise)
	if err != nil {
		return nil, err
	}
	needed, err := d.createNeeds(from, m, size)
	if err != nil {
		return nil, err
	}
	release, err := d.store.reserve(fmt.Sprintf("volume %q of %s", m.Name, bytesText(size)), needed)
	if err != nil {
		return nil, err
	}
	defer release()
	m.Created, m.Shares = time.Now().UTC(), from != nil && d.store.reflinks
	err = d.store.make(id, m, func(image *os.File) error {
		if from != nil {
			if err := d.copyImage(ctx, image, from); err != nil {
				return err
			}
		}
		if m.Preallocate {
			if err := d.store.preallocate(image, size, m.Shares); err != nil {
				return err
			}
		}
		return image.Truncate(size)
	})
	if err != nil {
		return nil, err
	}
	d.logger.Info("made volume", "volume", id, "name", m.Name, "bytes", size, "source", m.Source)
	return d.store.get(id)
}

// createNeeds returns how many bytes of disk space a new volume of that size needs, also if it is a copy.
func (d *Driver) createNeeds(from *item, m metadata, size int64) (int64, error) {
	needed := m.counted(size)
	if from == nil {
		return needed, nil
	}
	forCopy, err := d.store.copyNeeds(from)
	if !d.store.reflinks {
		return max(needed, forCopy), err // the copy is the volume's own
	}
	return needed + forCopy, err
}

func (d *Driver) describe(it *item) *csi.Volume {
	volume := &csi.Volume{VolumeId: it.id, CapacityBytes: it.size, AccessibleTopology: d.topology()}
	switch {
	case isSnapshotID(it.Source):
		volume.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: it.Source}}}
	case it.Source != "":
		volume.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: it.Source}}}
	}
	return volume
}

// DeleteVolume implements csi.ControllerServer. Copies of the volume live on.
func (d *Driver) DeleteVolume(
	ctx context.Context, req *csi.DeleteVolumeRequest,
) (*csi.DeleteVolumeResponse, error) {
	id := req.GetVolumeId()
	if id == "" {
		return nil, missingField("volume_id")
	}
	if !isVolumeID(id) {
		return &csi.DeleteVolumeResponse{}, nil // never was one of ours
	}
	return run(ctx, d.inflight, []string{id}, func(context.Context) (*csi.DeleteVolumeResponse, error) {
		if nodes, err := d.publishedNodes(id); err != nil || d.config.Shared && len(nodes) > 0 {
			if err == nil {
				err = status.Errorf(codes.FailedPrecondition, "volume %q is still published to node %q", id, nodes[0])
			}
			return nil, grpcError(err)
		}
		device, err := d.loops.find(d.store.image(id))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, grpcError(err)
		}
		if device != nil {
			return nil, status.Errorf(codes.FailedPrecondition,
				"volume %q is still published to node %q as %s", id, d.config.NodeID, device.path)
		}
		if err := d.store.remove(id); err != nil {
			return nil, grpcError(err)
		}
		d.logger.Info("removed volume", "volume", id)
		return &csi.DeleteVolumeResponse{}, nil
	})
}
