package csidriver

import (
	"context"
	"errors"
	"os"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ControllerPublishVolume implements csi.ControllerServer: it attaches the image to a loop device.
func (d *Driver) ControllerPublishVolume(
	ctx context.Context, req *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	id := req.GetVolumeId()
	switch {
	case id == "":
		return nil, missingField("volume_id")
	case req.GetNodeId() == "":
		return nil, missingField("node_id")
	case req.GetVolumeCapability() == nil:
		return nil, missingField("volume_capability")
	}
	if err := checkCapability(req.GetVolumeCapability()); err != nil {
		return nil, err
	}
	if _, err := d.volume(id); err != nil {
		return nil, err
	}
	if d.config.Shared {
		return d.publishShared(ctx, req)
	}
	if req.GetNodeId() != d.config.NodeID {
		return nil, status.Errorf(codes.NotFound, "node %q is not the node of the volumes, %q", req.GetNodeId(), d.config.NodeID)
	}
	return run(ctx, d.inflight, []string{id}, func(context.Context) (*csi.ControllerPublishVolumeResponse, error) {
		if _, err := d.volume(id); err != nil {
			return nil, err
		}
		device, err := d.ensureAttached(id, req.GetReadonly(), true)
		if err != nil {
			return nil, grpcError(err)
		}
		if device.readonly != req.GetReadonly() {
			return nil, status.Errorf(codes.AlreadyExists,
				"volume %q is published already, with readonly %t", id, device.readonly)
		}
		if err := d.nodeMark(id).clear(); err != nil {
			return nil, grpcError(err)
		}
		return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{
			ContextDevice: device.path, ContextReadonly: strconv.FormatBool(device.readonly),
		}}, nil
	})
}

// ensureAttached returns the volume's device. It attaches the volume if it has none, as after a reboot. The limit applies
// to newly published volumes only. The caller holds the id.
func (d *Driver) ensureAttached(id string, readonly, limited bool) (*loop, error) {
	it, err := d.volume(id)
	if err != nil {
		return nil, err
	}
	device, err := d.findOrAttach(id, readonly, limited)
	if err != nil {
		return nil, err
	}
	if it.Preallocate {
		if err := device.refuseDiscards(); err != nil {
			d.logger.Warn("failed to disable discarding; a volume may lose the blocks that were allocated for it",
				"volume", id, "device", device.path, "error", err)
		}
	}
	return device, d.limitDevice(id, device, it.Limits)
}

func (d *Driver) findOrAttach(id string, readonly, limited bool) (*loop, error) {
	device, err := d.loops.findAny(d.store.image(id))
	if err != nil || device != nil && !device.detaching {
		return device, err
	}
	if limited && d.config.MaxVolumes > 0 {
		count, err := d.countAttached()
		if err != nil {
			return nil, err
		}
		if count >= d.config.MaxVolumes {
			return nil, status.Errorf(codes.ResourceExhausted,
				"node %q has %d volumes published, its limit", d.config.NodeID, count)
		}
	}
	if device != nil {
		alive, err := d.cancelDetach(id, device, readonly)
		if err != nil || alive {
			return device, err
		}
	}
	device, err = d.loops.attach(d.store.image(id), readonly)
	if err != nil {
		return nil, err
	}
	d.logger.Info("attached volume", "volume", id, "device", device.path, "readonly", readonly)
	return device, nil
}

// cancelDetach reuses a device whose detaching has not completed. It returns false if the device is gone.
func (d *Driver) cancelDetach(id string, device *loop, readonly bool) (bool, error) {
	if device.readonly != readonly {
		return false, status.Errorf(codes.Aborted, "volume %q is still being detached from %s, with readonly %t: something, "+
			"such as a mount in another mount namespace, has it open", id, device.path, device.readonly)
	}
	alive, err := d.loops.cancelDetach(device)
	if alive {
		d.logger.Warn("volume is still open in another mount namespace; reusing its device", "volume", id, "device", device.path)
		device.detaching = false
	}
	return alive, err
}

func (d *Driver) countAttached() (int64, error) {
	volumes, err := d.store.list(d.store.volumes())
	if err != nil {
		return 0, err
	}
	var count int64
	for _, v := range volumes {
		device, err := d.loops.find(d.store.image(v.id))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			d.store.logUnreadable(v.id, err)
			count++ // it may be attached
		}
		if device != nil {
			count++
		}
	}
	return count, nil
}

// ControllerUnpublishVolume implements csi.ControllerServer.
func (d *Driver) ControllerUnpublishVolume(
	ctx context.Context, req *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	id := req.GetVolumeId()
	if id == "" {
		return nil, missingField("volume_id")
	}
	if d.config.Shared && isVolumeID(id) {
		return d.unpublishShared(ctx, req)
	}
	// Volumes of other drivers and other nodes are not published here.
	if !isVolumeID(id) || req.GetNodeId() != "" && req.GetNodeId() != d.config.NodeID {
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	}
	return run(ctx, d.inflight, []string{id}, func(context.Context) (*csi.ControllerUnpublishVolumeResponse, error) {
		device, err := d.loops.find(d.store.image(id))
		if errors.Is(err, os.ErrNotExist) || err == nil && device == nil {
			return &csi.ControllerUnpublishVolumeResponse{}, nil
		}
		if err != nil {
			return nil, grpcError(err)
		}
		filesystem, node, err := device.mounts()
		if err != nil {
			return nil, grpcError(err)
		}
		// The kernel would detach it only when it is no longer in use, and would not report that.
		if used := append(filesystem, node...); len(used) > 0 {
			return nil, status.Errorf(codes.FailedPrecondition,
				"volume %q (%s) is still mounted on %q", id, device.path, used[0].Mountpoint)
		}
		if err := d.loops.detach(device); err != nil {
			return nil, grpcError(err)
		}
		d.unlimit(device)
		d.logger.Info("detached volume", "volume", id, "device", device.path)
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	})
}

// detachUnused detaches a volume that is unstaged here if the controller service does not. The caller holds the id.
func (d *Driver) detachUnused(id string) error {
	switch {
	case !isVolumeID(id):
		return nil
	case d.config.Shared:
		return d.detachShared(id)
	}
	return d.detachUnpublished(id)
}

// detachUnmounted detaches the device, unless something here has it mounted, and reports whether it did.
func (d *Driver) detachUnmounted(device *loop) (detached bool, err error) {
	filesystem, node, err := device.mounts()
	if err != nil || len(filesystem)+len(node) > 0 {
		return false, err
	}
	if err := d.loops.detach(device); err != nil {
		return false, err
	}
	d.unlimit(device)
	return true, nil
}
