package csidriver

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/moby/sys/mountinfo"
)

// ControllerExpandVolume implements csi.ControllerServer: it makes the image larger, and its device if it is
// attached. The filesystem is left to the node.
func (d *Driver) ControllerExpandVolume(
	ctx context.Context, req *csi.ControllerExpandVolumeRequest,
) (*csi.ControllerExpandVolumeResponse, error) {
	id := req.GetVolumeId()
	switch {
	case id == "":
		return nil, missingField("volume_id")
	case req.GetCapacityRange() == nil:
		return nil, missingField("capacity_range")
	}
	if capability := req.GetVolumeCapability(); capability != nil {
		if err := checkCapability(capability); err != nil {
			return nil, err
		}
	}
	if _, err := d.volume(id); err != nil {
		return nil, err
	}
	return run(ctx, d.inflight, []string{id}, func(context.Context) (*csi.ControllerExpandVolumeResponse, error) {
		size, err := d.expand(id, req.GetCapacityRange())
		if err != nil {
			return nil, grpcError(err)
		}
		return &csi.ControllerExpandVolumeResponse{
			CapacityBytes: size, NodeExpansionRequired: req.GetVolumeCapability().GetBlock() == nil,
		}, nil
	})
}

func (d *Driver) expand(id string, capacity *csi.CapacityRange) (int64, error) {
	it, err := d.volume(id)
	if err != nil {
		return 0, err
	}
	if limit := capacity.GetLimitBytes(); limit > 0 && it.size > limit {
		return 0, status.Errorf(codes.OutOfRange,
			"capacity_range: volume %q has %d bytes, more than limit_bytes %d, and cannot shrink", id, it.size, limit)
	}
	size, err := chooseSize(capacity, it.size, it.size)
	if err != nil {
		return 0, err
	}
	if size > it.size {
		release, err := d.store.reserve(
			fmt.Sprintf("volume %q to grow from %s to %s", it.Name, bytesText(it.size), bytesText(size)), it.counted(size)-it.counted(it.size))
		if err != nil {
			return 0, err
		}
		err = d.store.grow(it, size)
		release()
		if err != nil {
			return 0, err
		}
		d.logger.Info("expanded volume", "volume", id, "from", it.size, "to", size)
	}
	// Also when it has the size already: an earlier call may have been cut short here.
	device, err := d.loops.findAny(d.store.image(id))
	if err != nil || device == nil {
		return size, err
	}
	return size, d.loops.resize(device)
}

// NodeExpandVolume implements csi.NodeServer: it makes the filesystem as large as the device.
func (d *Driver) NodeExpandVolume(
	ctx context.Context, req *csi.NodeExpandVolumeRequest,
) (*csi.NodeExpandVolumeResponse, error) {
	id := req.GetVolumeId()
	switch {
	case id == "":
		return nil, missingField("volume_id")
	case req.GetVolumePath() == "":
		return nil, missingField("volume_path")
	}
	if _, err := d.volume(id); err != nil {
		return nil, err
	}
	return run(ctx, d.inflight, []string{id}, func(context.Context) (*csi.NodeExpandVolumeResponse, error) {
		it, err := d.volume(id)
		if err != nil {
			return nil, err
		}
		if required := req.GetCapacityRange().GetRequiredBytes(); required > it.size {
			return nil, status.Errorf(codes.OutOfRange,
				"capacity_range: volume %q has %d bytes, less than required_bytes %d: it was not expanded by the controller",
				id, it.size, required)
		}
		device, at, err := d.mounted(id, req.GetVolumePath(), req.GetVolumeCapability().GetBlock() != nil)
		if err != nil {
			return nil, grpcError(err)
		}
		if err := d.loops.resize(device); err != nil {
			return nil, grpcError(err)
		}
		if at != nil && device.isFilesystemMount(at) {
			err = growMounted(device, at.FSType, at.Mountpoint)
			if errors.Is(err, errGrowNotPermitted) {
				return nil, growDeferredError(id)
			}
			if err != nil {
				return nil, grpcError(err)
			}
		}
		return &csi.NodeExpandVolumeResponse{CapacityBytes: it.size}, nil
	})
}

// mounted returns the volume's device and its mount on path, or a NotFound. With block, a path that is no mount
// point will do: a raw block volume has nothing mounted on its staging path.
func (d *Driver) mounted(id, path string, block bool) (*loop, *mountinfo.Info, error) {
	device, err := d.loops.find(d.store.image(id))
	if err != nil {
		return nil, nil, err
	}
	if device == nil {
		return nil, nil, status.Errorf(codes.NotFound, "volume %q is not published to node %q", id, d.config.NodeID)
	}
	clean, _, err := resolveTarget("volume_path", path)
	if status.Code(err) == codes.InvalidArgument {
		return nil, nil, status.Error(codes.NotFound, status.Convert(err).Message())
	}
	if err != nil {
		return nil, nil, err
	}
	at, err := mountAt(clean)
	switch {
	case err != nil:
		return nil, nil, err
	case at == nil && block:
		return device, nil, nil
	case at == nil || !device.isFilesystemMount(at) && !device.isNodeMount(at):
		return nil, nil, status.Errorf(codes.NotFound, "volume_path: volume %q is not mounted on %q", id, path)
	}
	return device, at, nil
}
