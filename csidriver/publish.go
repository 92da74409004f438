package csidriver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NodePublishVolume implements csi.NodeServer: it binds the staged filesystem, or the device's node, to the target.
func (d *Driver) NodePublishVolume(
	ctx context.Context, req *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	id := req.GetVolumeId()
	switch {
	case id == "":
		return nil, missingField("volume_id")
	case req.GetTargetPath() == "":
		return nil, missingField("target_path")
	case req.GetVolumeCapability() == nil:
		return nil, missingField("volume_capability")
	case req.GetStagingTargetPath() == "":
		return nil, status.Error(codes.FailedPrecondition, "staging_target_path is missing")
	}
	if err := checkCapability(req.GetVolumeCapability()); err != nil {
		return nil, err
	}
	if _, err := d.volume(id); err != nil {
		return nil, err
	}
	return run(ctx, d.inflight, []string{id}, func(context.Context) (*csi.NodePublishVolumeResponse, error) {
		if err := d.publish(req); err != nil {
			return nil, grpcError(err)
		}
		return &csi.NodePublishVolumeResponse{}, nil
	})
}

func (d *Driver) publish(req *csi.NodePublishVolumeRequest) error {
	id, block := req.GetVolumeId(), req.GetVolumeCapability().GetBlock() != nil
	device, staged, err := d.mounted(id, req.GetStagingTargetPath(), block)
	if status.Code(err) == codes.NotFound {
		return status.Errorf(codes.FailedPrecondition, "volume %q is not staged: %v", id, status.Convert(err).Message())
	}
	if err != nil {
		return err
	}
	target, exists, err := resolveTarget("target_path", req.GetTargetPath())
	if err != nil {
		return err
	}
	if at, err := mountAt(target); err != nil || at != nil {
		return samePublication(at, device, req, err)
	}
	if err := d.checkSingleWriter(req, device, staged, target); err != nil {
		return err
	}
	source, options := req.GetStagingTargetPath(), []string{"bind"}
	if block {
		if err := d.restoreDevice(id, device); err != nil {
			return err
		}
		if source, err = d.loops.containerNode(device); err != nil {
			return err
		}
	} else {
		options = append(options, req.GetVolumeCapability().GetMount().GetMountFlags()...)
	}
	if req.GetReadonly() {
		options = append(options, "ro")
	}
	if !exists {
		if err := makeTarget(target, block); err != nil {
			return fmt.Errorf("make target_path: %w", err)
		}
	}
	return d.mounter.Mount(source, target, "", options)
}

// samePublication decides about a target that has something mounted on it.
func samePublication(at *mountinfo.Info, device *loop, req *csi.NodePublishVolumeRequest, err error) error {
	if err != nil {
		return err
	}
	block := req.GetVolumeCapability().GetBlock() != nil
	if block && !device.isNodeMount(at) || !block && !device.isFilesystemMount(at) {
		return status.Errorf(codes.FailedPrecondition,
			"target_path: %q has %s %q mounted on it", at.Mountpoint, at.FSType, at.Source)
	}
	wanted := req.GetReadonly() || device.readonly ||
		slices.Contains(req.GetVolumeCapability().GetMount().GetMountFlags(), "ro")
	// A read-only mount of a device's node means nothing: who may write to it is up to the container's device rules.
	if have := slices.Contains(strings.Split(at.Options, ","), "ro"); have != wanted && !block {
		return status.Errorf(codes.AlreadyExists,
			"volume %q is published on %q already, with readonly %t", req.GetVolumeId(), at.Mountpoint, have)
	}
	return nil
}

// checkSingleWriter refuses a second publication of a volume for one writer. Parts of the volume that are mounted
// elsewhere (as kubelets do for subPath) do not count.
func (d *Driver) checkSingleWriter(
	req *csi.NodePublishVolumeRequest, device *loop, staged *mountinfo.Info, target string,
) error {
	mode := req.GetVolumeCapability().GetAccessMode().GetMode()
	if mode != csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER {
		return nil
	}
	filesystem, node, err := device.mounts()
	if err != nil {
		return err
	}
	for _, m := range append(filesystem, node...) {
		whole := device.isNodeMount(m) || m.Root == "/"
		if whole && m.Mountpoint != target && (staged == nil || m.Mountpoint != staged.Mountpoint) {
			return status.Errorf(codes.FailedPrecondition, "volume %q has the access mode %v and is published on %q already",
				req.GetVolumeId(), mode, m.Mountpoint)
		}
	}
	return nil
}

// makeTarget creates the file or directory that is the target of a bind mount.
func makeTarget(target string, block bool) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	if !block {
		return os.Mkdir(target, 0o750)
	}
	file, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	return file.Close()
}

// NodeUnpublishVolume implements csi.NodeServer.
func (d *Driver) NodeUnpublishVolume(
	ctx context.Context, req *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	id := req.GetVolumeId()
	switch {
	case id == "":
		return nil, missingField("volume_id")
	case req.GetTargetPath() == "":
		return nil, missingField("target_path")
	}
	return run(ctx, d.inflight, []string{id}, func(context.Context) (*csi.NodeUnpublishVolumeResponse, error) {
		target, err := d.unmount(id, "target_path", req.GetTargetPath())
		if err == nil {
			err = removeTarget(target)
		}
		if err == nil {
			err = d.unmapUnused(id)
		}
		if err != nil {
			return nil, grpcError(err)
		}
		return &csi.NodeUnpublishVolumeResponse{}, nil
	})
}

// unmapUnused removes the mapping of a raw block volume that is published nowhere any more. The caller holds the id.
func (d *Driver) unmapUnused(id string) error {
	if !isVolumeID(id) {
		return nil
	}
	device, err := d.loops.findAny(d.store.image(id))
	if errors.Is(err, os.ErrNotExist) || err == nil && (device == nil || device.mapped == "") {
		return nil
	}
	if err != nil {
		return err
	}
	_, node, err := device.mounts()
	if err != nil || len(node) > 0 {
		return err
	}
	return d.loops.devices.Unmap(device.number)
}

// NodeGetVolumeStats implements csi.NodeServer.
func (d *Driver) NodeGetVolumeStats(
	_ context.Context, req *csi.NodeGetVolumeStatsRequest,
) (*csi.NodeGetVolumeStatsResponse, error) {
	switch {
	case req.GetVolumeId() == "":
		return nil, missingField("volume_id")
	case req.GetVolumePath() == "":
		return nil, missingField("volume_path")
	}
	it, err := d.volume(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	device, at, err := d.mounted(it.id, req.GetVolumePath(), false)
	if errors.Is(err, os.ErrNotExist) {
		return nil, status.Errorf(codes.NotFound, "volume %q %v", it.id, errNotFound)
	}
	if err != nil {
		return nil, grpcError(err)
	}
	if !device.isFilesystemMount(at) {
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{
			Unit: csi.VolumeUsage_BYTES, Total: it.size,
		}}}, nil
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(at.Mountpoint, &stat); err != nil {
		return nil, grpcError(&os.PathError{Op: "statfs", Path: at.Mountpoint, Err: err})
	}
	size := stat.Bsize
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{
			Unit: csi.VolumeUsage_BYTES, Total: int64(stat.Blocks) * size,
			Used: int64(stat.Blocks-stat.Bfree) * size, Available: int64(stat.Bavail) * size,
		},
		{
			Unit: csi.VolumeUsage_INODES, Total: int64(stat.Files),
			Used: int64(stat.Files - stat.Ffree), Available: int64(stat.Ffree),
		},
	}}, nil
}
