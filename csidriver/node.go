package csidriver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NodeGetCapabilities implements csi.NodeServer.
func (d *Driver) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	resp := &csi.NodeGetCapabilitiesResponse{}
	for _, rpc := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		resp.Capabilities = append(resp.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: rpc}},
		})
	}
	return resp, nil
}

// NodeGetInfo implements csi.NodeServer.
func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	resp := &csi.NodeGetInfoResponse{NodeId: d.config.NodeID, MaxVolumesPerNode: d.config.MaxVolumes}
	if topology := d.topology(); len(topology) > 0 {
		resp.AccessibleTopology = topology[0]
	}
	return resp, nil
}

// NodeStageVolume implements csi.NodeServer: it creates the filesystem of a new volume, expands the filesystem of an
// expanded volume, and mounts it. For a raw block volume it only attaches the device.
func (d *Driver) NodeStageVolume(
	ctx context.Context, req *csi.NodeStageVolumeRequest,
) (*csi.NodeStageVolumeResponse, error) {
	id := req.GetVolumeId()
	switch {
	case id == "":
		return nil, missingField("volume_id")
	case req.GetStagingTargetPath() == "":
		return nil, missingField("staging_target_path")
	case req.GetVolumeCapability() == nil:
		return nil, missingField("volume_capability")
	}
	if err := checkCapability(req.GetVolumeCapability()); err != nil {
		return nil, err
	}
	if _, err := d.volume(id); err != nil {
		return nil, err
	}
	return run(ctx, d.inflight, []string{id}, func(ctx context.Context) (*csi.NodeStageVolumeResponse, error) {
		if _, err := d.volume(id); err != nil {
			return nil, err
		}
		if err := d.checkPublished(id); err != nil {
			return nil, grpcError(err)
		}
		if err := d.markAttachedByNode(id, req.GetPublishContext()); err != nil {
			return nil, grpcError(err)
		}
		// The device of the publish context may be from before a reboot: the image is what counts.
		device, err := d.ensureAttached(id, req.GetPublishContext()[ContextReadonly] == "true", false)
		if err == nil && req.GetVolumeCapability().GetBlock() == nil {
			err = d.stage(ctx, id, device, req.GetStagingTargetPath(), req.GetVolumeCapability().GetMount())
		}
		if err != nil {
			return nil, grpcError(err)
		}
		return &csi.NodeStageVolumeResponse{}, nil
	})
}

func (d *Driver) stage(
	ctx context.Context, id string, device *loop, staging string, capability *csi.VolumeCapability_MountVolume,
) error {
	staging, exists, err := resolveTarget("staging_target_path", staging)
	if err != nil {
		return err
	}
	if !exists {
		if err := os.MkdirAll(staging, 0o750); err != nil {
			return fmt.Errorf("make staging_target_path: %w", err)
		}
	}
	at, err := mountAt(staging)
	switch {
	case err != nil:
		return err
	case at != nil && !device.isFilesystemMount(at):
		return status.Errorf(codes.FailedPrecondition, "staging_target_path: %q has %q mounted on it", staging, at.Source)
	case at != nil && capability.GetFsType() != "" && capability.GetFsType() != at.FSType:
		return status.Errorf(codes.AlreadyExists,
			"volume %q is staged with %s, not %s", id, at.FSType, capability.GetFsType())
	case at != nil:
		return nil
	}
	elsewhere, _, err := device.mounts()
	if err != nil {
		return err
	}
	fsType, err := d.ensureFilesystem(ctx, id, device, capability.GetFsType())
	if err != nil {
		return err
	}
	if fsType == fsExt4 && !device.readonly && len(elsewhere) == 0 {
		if err := d.preen(ctx, device); err != nil {
			return err
		}
	}
	return d.mountGrown(ctx, device, fsType, staging, capability.GetMountFlags())
}

// mountGrown mounts the filesystem and makes it as large as its device.
func (d *Driver) mountGrown(ctx context.Context, device *loop, fsType, staging string, flags []string) error {
	options := append([]string{}, flags...)
	switch {
	case fsType == fsXFS && device.readonly:
		options = append(options, "nouuid", "ro", "norecovery")
	case fsType == fsXFS:
		options = append(options, "nouuid") // a clone beside its source has the same UUID
	case device.readonly:
		options = append(options, "ro", "noload")
	}
	if device.readonly {
		return d.mountDevice(device, staging, fsType, options)
	}
	if err := d.growUnmounted(ctx, device, fsType); err != nil {
		return err
	}
	if err := d.mountDevice(device, staging, fsType, options); err != nil {
		return err
	}
	err := growMounted(device, fsType, staging)
	switch {
	case errors.Is(err, unix.EROFS): // the caller's mount flags have "ro"
	case errors.Is(err, errGrowNotPermitted): // NodeExpandVolume reports it
		d.logger.Warn("filesystem cannot be expanded now", "device", device.path, "reason", err)
	case err != nil:
		return errors.Join(err, d.mounter.Unmount(staging))
	}
	return nil
}

func (d *Driver) mountDevice(device *loop, staging, fsType string, options []string) error {
	err := d.mounter.Mount(device.path, staging, fsType, options)
	if errors.Is(err, unix.ENODEV) {
		return status.Errorf(codes.FailedPrecondition, "the kernel has no %s: load the module %q", fsType, fsType)
	}
	return err
}

// NodeUnstageVolume implements csi.NodeServer.
func (d *Driver) NodeUnstageVolume(
	ctx context.Context, req *csi.NodeUnstageVolumeRequest,
) (*csi.NodeUnstageVolumeResponse, error) {
	switch {
	case req.GetVolumeId() == "":
		return nil, missingField("volume_id")
	case req.GetStagingTargetPath() == "":
		return nil, missingField("staging_target_path")
	}
	return run(ctx, d.inflight, []string{req.GetVolumeId()}, func(context.Context) (*csi.NodeUnstageVolumeResponse, error) {
		_, err := d.unmount(req.GetVolumeId(), "staging_target_path", req.GetStagingTargetPath())
		if err == nil {
			err = d.detachUnused(req.GetVolumeId())
		}
		if err != nil {
			return nil, grpcError(err)
		}
		return &csi.NodeUnstageVolumeResponse{}, nil
	})
}

// unmount unmounts the volume from path, all layers of it, and returns the path without symbolic links. It refuses
// to unmount anything else.
func (d *Driver) unmount(id, field, path string) (string, error) {
	path, exists, err := resolveTarget(field, path)
	if err != nil || !exists {
		return path, err
	}
	var device *loop
	if isVolumeID(id) {
		if device, err = d.loops.findAny(d.store.image(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return path, err
		}
	}
	for {
		at, err := mountAt(path)
		switch {
		case err != nil || at == nil:
			return path, err
		case device == nil && isDetachedNodeMount(at):
		case device == nil || !device.isFilesystemMount(at) && !device.isNodeMount(at):
			return path, status.Errorf(codes.Internal,
				"%s: what is mounted on %q (%s %s) is not volume %q", field, path, at.FSType, at.Source, id)
		}
		if err := d.mounter.Unmount(path); err != nil {
			return path, err
		}
	}
}

// removeTarget removes the empty directory or the file that a volume was published on. It never removes data.
func removeTarget(path string) error {
	err := unix.Rmdir(path)
	if errors.Is(err, unix.ENOTDIR) {
		var info os.FileInfo
		if info, err = os.Lstat(path); err == nil && info.Size() > 0 {
			return status.Errorf(codes.Internal, "target_path: %q is a file with data", path)
		}
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove target_path %q: %w", filepath.Base(path), err)
	}
	return nil
}
